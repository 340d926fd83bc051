-- Twelve payments of three organisations: each is created and then settled. The change of the payment and its event are one
-- transaction.
DO $$
DECLARE
    orgs    uuid[] := ARRAY['a0000000-0000-4000-8000-000000000001', 'a0000000-0000-4000-8000-000000000002', 'a0000000-0000-4000-8000-000000000003'];
    payment uuid;
    step    text;
BEGIN
    FOR i IN 1..12 LOOP
        payment := gen_random_uuid();
        FOREACH step IN ARRAY ARRAY['created', 'settled'] LOOP
            INSERT INTO payments VALUES (payment, orgs[1 + i % 3], i * 100, step)
                ON CONFLICT (id) DO UPDATE SET status = excluded.status;
            INSERT INTO payment_outbox (org_id, aggregate_id, topic, event_type, partition_key, payload)
            VALUES (orgs[1 + i % 3], payment, 'payments', 'payment.' || step, payment::text,
                    jsonb_build_object('event_id', 'evt-' || i || '-' || step, 'org_id', orgs[1 + i % 3], 'occurred_at', clock_timestamp(),
                                       'data', jsonb_build_object('payment_id', payment, 'amount', i * 100, 'status', step)));
            COMMIT;
        END LOOP;
    END LOOP;
END $$;
