-- A payment service that had a poller and a Kafka client of its own. walpost changes nothing here.
CREATE TABLE payments (
    id     uuid   PRIMARY KEY,
    org_id uuid   NOT NULL,
    amount bigint NOT NULL,
    status text   NOT NULL
);

CREATE TABLE payment_outbox (
    id            uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id        uuid        NOT NULL,
    aggregate_id  uuid        NOT NULL REFERENCES payments ON DELETE CASCADE,
    topic         text        NOT NULL,
    event_type    text        NOT NULL,
    event_version int         NOT NULL DEFAULT 1,
    partition_key text        NOT NULL,
    payload       jsonb       NOT NULL,              -- an envelope: event_id, org_id, occurred_at, data
    created_at    timestamptz NOT NULL DEFAULT now(),
    published_at  timestamptz
);
CREATE INDEX payment_outbox_unpublished ON payment_outbox (created_at) WHERE published_at IS NULL;
-- What consumers dedupe on stands in the envelope. walpost looks rows up by it, after a change of the slot and for people.
CREATE INDEX payment_outbox_event_id ON payment_outbox ((payload ->> 'event_id'));
