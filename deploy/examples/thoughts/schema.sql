-- A service that keeps thoughts, with an outbox of its own shape: a flag and a time say that a row was delivered. walpost
-- changes nothing here.
CREATE TABLE thoughts (
    id     bigint PRIMARY KEY,
    author text   NOT NULL,
    text   text   NOT NULL,
    likes  int    NOT NULL DEFAULT 0
);

CREATE TABLE outbox_events (
    seq          bigserial   PRIMARY KEY,
    event_type   text        NOT NULL,
    payload      jsonb       NOT NULL,
    delivered    boolean     NOT NULL DEFAULT false,
    delivered_at timestamptz
);
CREATE INDEX outbox_events_waiting ON outbox_events (seq) WHERE NOT delivered;
