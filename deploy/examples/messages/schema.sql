-- There is no outbox table: the event is a message in the WAL, written in the transaction of the change.
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);

-- Any role may call pg_logical_emit_message: what it writes would go out signed as an event of ours. Only the service may.
CREATE ROLE orders_service;
DO $$
DECLARE
    function regprocedure; -- one for text, one for bytea; they have other arguments from Postgres 17 on
BEGIN
    FOR function IN SELECT oid FROM pg_catalog.pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO orders_service', function);
    END LOOP;
END $$;
GRANT INSERT, UPDATE, SELECT ON orders TO orders_service;
