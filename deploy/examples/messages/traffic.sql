SET ROLE orders_service;

-- Five orders are made and paid: each change with its event, in one transaction.
BEGIN;
DO $$
DECLARE
    step text;
BEGIN
    FOREACH step IN ARRAY ARRAY['made', 'paid'] LOOP
        FOR n IN 1..5 LOOP
            INSERT INTO orders VALUES (n, step) ON CONFLICT (id) DO UPDATE SET status = excluded.status;
            PERFORM pg_catalog.pg_logical_emit_message(true, 'orders', jsonb_build_object(
                'id', format('order-%s-%s', n, step), 'type', 'order.' || step, 'key', n::text,
                'payload', jsonb_build_object('order_id', n))::text);
        END LOOP;
    END LOOP;
END $$;
COMMIT;

-- One is rolled back: its message goes to no one.
BEGIN;
UPDATE orders SET status = 'lost' WHERE id = 1;
SELECT pg_catalog.pg_logical_emit_message(true, 'orders', '{"id": "order-1-lost", "type": "order.lost", "key": "1", "payload": {}}');
ROLLBACK;

RESET ROLE;
