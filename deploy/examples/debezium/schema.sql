-- Two services that wrote their outboxes for Debezium's outbox event router. walpost changes nothing here.
CREATE TABLE outbox (
    id            uuid         PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype varchar(255) NOT NULL,   -- becomes the topic
    aggregateid   varchar(255) NOT NULL,   -- becomes the key
    type          varchar(255) NOT NULL,
    payload       jsonb
);

-- The second one deletes each row in the transaction that inserts it: the WAL alone has the event.
CREATE SCHEMA shipping;
CREATE TABLE shipping.outbox (LIKE outbox INCLUDING ALL);
