-- Four orders are placed and paid: rows that stay. Then they are shipped: rows that no one ever sees, since each is deleted in
-- the transaction that inserts it. The last one says that there is no shipment of order 4 any more, with a tombstone.
DO $$
DECLARE
    step text;
BEGIN
    FOREACH step IN ARRAY ARRAY['OrderPlaced', 'OrderPaid'] LOOP
        FOR n IN 1..4 LOOP
            INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
            VALUES ('order', 'order-' || n, step, jsonb_build_object('order', n, 'cents', 9007199254740993));
            COMMIT;
        END LOOP;
    END LOOP;
    FOR n IN 1..5 LOOP
        INSERT INTO shipping.outbox (aggregatetype, aggregateid, type, payload)
        VALUES ('shipment', 'order-' || least(n, 4), CASE n WHEN 5 THEN 'ShipmentRemoved' ELSE 'Shipped' END,
                CASE n WHEN 5 THEN NULL ELSE jsonb_build_object('order', n) END);
        DELETE FROM shipping.outbox;
        COMMIT;
    END LOOP;
END $$;
