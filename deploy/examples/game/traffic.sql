-- Two games of six moves each, a transaction each.
DO $$
BEGIN
    FOR i IN 1..6 LOOP
        PERFORM move('42', i, CASE WHEN i % 2 = 1 THEN 'x' ELSE 'o' END);
        COMMIT;
        PERFORM move('43', 10 - i, CASE WHEN i % 2 = 1 THEN 'x' ELSE 'o' END);
        COMMIT;
    END LOOP;
END $$;
