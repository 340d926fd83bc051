-- +goose Up
-- What people have asked to be sent to one subscriber again. The leader acts on a row; people make and
-- cancel it. What was asked never changes; how far it is, the leader writes at least once a second.
CREATE TABLE walpost.replays (
    slot        TEXT        NOT NULL,
    id          BIGINT      GENERATED ALWAYS AS IDENTITY,
    subscriber  TEXT        NOT NULL,
    state       TEXT        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'cancelled')),
    -- What is chosen: NULL and '' choose all.
    since       TIMESTAMPTZ,
    until       TIMESTAMPTZ,                           -- exclusive
    key         TEXT        NOT NULL DEFAULT '',
    event_type  TEXT        NOT NULL DEFAULT '',
    source      TEXT        NOT NULL DEFAULT '',
    again       BOOLEAN     NOT NULL DEFAULT false,    -- effects in walpost.inbox from before asked_at are done again
    rate        INT         NOT NULL DEFAULT 0,        -- events a second, 0 for no limit
    asked_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    who         TEXT        NOT NULL,
    estimated   BIGINT      NOT NULL,                  -- rows that were chosen then
    bounds      JSONB       NOT NULL,                  -- by source, the last row that was there then
    -- How far it is: everything up to this row of this source.
    at_source   TEXT        NOT NULL DEFAULT '',
    at_row      JSONB,
    delivered   BIGINT      NOT NULL DEFAULT 0,
    dead        BIGINT      NOT NULL DEFAULT 0,        -- became dead letters
    owed        BIGINT      NOT NULL DEFAULT 0,        -- left out: the debt or a redrive sends them
    unwanted    BIGINT      NOT NULL DEFAULT 0,        -- left out: not for this subscriber
    invalid     BIGINT      NOT NULL DEFAULT 0,        -- left out: no valid events
    named       JSONB       NOT NULL DEFAULT '[]',     -- the first of those, with the reason
    problem     TEXT        NOT NULL DEFAULT '',       -- what it waits for
    started_at  TIMESTAMPTZ,
    ended_at    TIMESTAMPTZ,
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, id)
);
CREATE INDEX replays_open ON walpost.replays (slot, id) WHERE state IN ('waiting', 'running');

-- +goose Down
DROP TABLE walpost.replays;
