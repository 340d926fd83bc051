-- There is no outbox table: the event is a message in the WAL, written in the transaction of the change.
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);

-- Any role may call pg_logical_emit_message: what it writes would go out signed as an event of ours. Only the service may.
CREATE ROLE orders_service;
REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) TO orders_service;
GRANT INSERT, UPDATE, SELECT ON orders TO orders_service;
