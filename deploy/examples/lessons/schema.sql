-- The classic outbox of many services, in a schema of its own.
CREATE SCHEMA school;
CREATE TABLE school.outbox (
    id           bigserial   PRIMARY KEY,
    event_id     text        NOT NULL UNIQUE,
    event_type   text        NOT NULL,
    payload      jsonb       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    attempts     int         NOT NULL DEFAULT 0
);
CREATE INDEX outbox_unpublished ON school.outbox (created_at) WHERE published_at IS NULL;
