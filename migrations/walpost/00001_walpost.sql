-- +goose Up
-- The schema walpost is there already: the versions of the migrations are kept in it.

-- What the relay knows about its slot. confirmed is written before the status update that carries it,
-- so a slot that stands above it was moved by someone else.
CREATE TABLE walpost.slots (
    slot         TEXT        PRIMARY KEY,
    system_id    TEXT        NOT NULL,
    timeline     INT         NOT NULL,
    epoch        INT         NOT NULL DEFAULT 1,
    confirmed    PG_LSN      NOT NULL DEFAULT '0/0',
    -- How often the relay has recorded something: it knows by that a database that has gone back to an earlier state.
    records      BIGINT      NOT NULL DEFAULT 0,
    -- What was published when the relay last compared it, by source: store.Fingerprint.
    fingerprint  JSONB       NOT NULL DEFAULT '{}',
    state        TEXT        NOT NULL CHECK (state IN ('creating', 'ready')),
    ours         BOOLEAN     NOT NULL DEFAULT true,
    -- By table: the columns by which its events are known, {"id": ..., "time": ..., "key": [...]}.
    known_by     JSONB       NOT NULL DEFAULT '{}',
    -- Starts in a row after which the process ended within 5 minutes, and not by a clean stop; and the delivery
    -- that is in hand while the relay is in safe mode because of them.
    unclean_starts INT       NOT NULL DEFAULT 0,
    quarantined  JSONB,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- Up to which position everything is finished, and everything is secured (finished or owed).
CREATE TABLE walpost.subscribers (
    slot             TEXT        NOT NULL,
    name             TEXT        NOT NULL,
    state            TEXT        NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'paused')),
    system_id        TEXT        NOT NULL DEFAULT '',
    timeline         INT         NOT NULL DEFAULT 0,
    finished_epoch   INT         NOT NULL DEFAULT 0,
    finished_commit  PG_LSN      NOT NULL DEFAULT '0/0',
    finished_ordinal BIGINT      NOT NULL DEFAULT 0,
    secured_epoch    INT         NOT NULL DEFAULT 0,
    secured_commit   PG_LSN      NOT NULL DEFAULT '0/0',
    secured_ordinal  BIGINT      NOT NULL DEFAULT 0,
    gone_at          TIMESTAMPTZ,                       -- left the configuration
    -- What it wants, by the place in the WAL where events commit: [{"until": {"epoch": 1, "lsn": "0/16B3748"},
    -- "any": [{"sources": [], "events": ["lesson.*"], "types": []}]}, ...]; the last part has no end while it is
    -- configured. Of one that has left: what is to be recorded still, [] when that is done.
    wants            JSONB       NOT NULL DEFAULT '[{"any": [{}]}]',
    last_seen        TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, name)
);

-- An event is (source, event_id, occurrence): an id that comes again after TRUNCATE ... RESTART IDENTITY is
-- another event. The occurrence is the text of the row's time column, or a hash of type and payload.

-- Deliveries that are not in the stream's hands any more: waiting is sent by itself later, dead waits
-- for a person, paid was sent or discarded and stays only until its row is marked and the stream is past it.
-- A row of subscriber '' is always paid: an event that no one is owed, and whose mark has to wait.
-- The event is copied, except where only walpost's own retention deletes outbox rows (copied = false):
-- there row_id points to it. Payload and headers are TEXT: what Postgres sent comes back byte for byte.
CREATE TABLE walpost.owed (
    slot           TEXT        NOT NULL,
    subscriber     TEXT        NOT NULL,
    source         TEXT        NOT NULL,
    event_id       TEXT        NOT NULL,
    occurrence     TEXT        NOT NULL,
    state          TEXT        NOT NULL CHECK (state IN ('waiting', 'dead', 'paid')),
    epoch          INT         NOT NULL,
    commit_lsn     PG_LSN      NOT NULL,
    ordinal        BIGINT      NOT NULL,
    -- made_up: the row was read from its table, so that the position is none of a commit. Either way the event's
    -- transaction is behind a stream that is past the bound: the commit itself, or the end of the WAL when the
    -- row was read.
    made_up        BOOLEAN     NOT NULL DEFAULT false,
    -- The made-up position is in order among those of the table's other rows, so it stays.
    in_table_order BOOLEAN     NOT NULL DEFAULT false,
    bound          PG_LSN      NOT NULL DEFAULT '0/0',
    event_type     TEXT        NOT NULL,
    key            TEXT        NOT NULL,
    row_id         TEXT        NOT NULL DEFAULT '',
    xid            BIGINT      NOT NULL DEFAULT 0,
    committed_at   TIMESTAMPTZ,                           -- NULL where the server does not know it
    attempts       INT         NOT NULL DEFAULT 0,        -- failed ones
    next_attempt   TIMESTAMPTZ,
    first_failure  TIMESTAMPTZ,
    last_failure   TIMESTAMPTZ,
    error          TEXT        NOT NULL DEFAULT '',
    invalid        TEXT        NOT NULL DEFAULT '',       -- why the row is no valid event
    lost           BOOLEAN     NOT NULL DEFAULT false,    -- its outbox row is gone, and no copy was kept
    size           INT         NOT NULL DEFAULT 0,        -- bytes that the event takes in memory
    mark           BOOLEAN     NOT NULL DEFAULT false,    -- paid, and the leader has still to mark the outbox row
    copied         BOOLEAN     NOT NULL DEFAULT true,
    version        TEXT        NOT NULL DEFAULT '',
    aggregate_type TEXT        NOT NULL DEFAULT '',
    aggregate_id   TEXT        NOT NULL DEFAULT '',
    topic          TEXT        NOT NULL DEFAULT '',
    revision       TEXT        NOT NULL DEFAULT '',
    occurred_at    TEXT        NOT NULL DEFAULT '',
    payload_type   TEXT        NOT NULL DEFAULT 'json',   -- of the source's column: json, text or bytea
    payload        TEXT,
    headers        TEXT,
    recorded_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    -- The event comes before the subscriber: is anything of this event still owed?
    PRIMARY KEY (slot, event_id, source, occurrence, subscriber)
) WITH (
    -- A queue: a fifth of a large one would be a long time to wait for the removal of what was paid.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02
);
-- One index for each state, so that only a statement that names the state can use it: with statistics of
-- an hour ago, when the table was empty, one of a whole subscriber looks as good for finding a single
-- delivery as the primary key, and reads everything that is owed for each.
CREATE INDEX owed_waiting ON walpost.owed (slot, subscriber, epoch, commit_lsn, ordinal) WHERE state = 'waiting';
-- The first delivery of each key that fails: what is set aside while the others are sent.
CREATE INDEX owed_failing ON walpost.owed (slot, subscriber, key) WHERE first_failure IS NOT NULL AND state NOT IN ('dead', 'paid');
CREATE INDEX owed_dead ON walpost.owed (slot, subscriber, epoch, commit_lsn, ordinal) WHERE state = 'dead';
CREATE INDEX owed_unmarked ON walpost.owed (slot, epoch, bound, event_id, source, occurrence, subscriber) WHERE state = 'paid' AND mark;
-- What is still to be marked stands apart from what only waits for the stream, in the order in which the stream passes it.
CREATE INDEX owed_paid ON walpost.owed (slot, subscriber, mark, epoch, bound) WHERE state = 'paid';

-- The effect of (subscriber, event) is in the database: written in the transaction of the effect.
CREATE TABLE walpost.inbox (
    slot       TEXT        NOT NULL,
    subscriber TEXT        NOT NULL,
    event_id   TEXT        NOT NULL,
    source     TEXT        NOT NULL,
    occurrence TEXT        NOT NULL,
    done_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, subscriber, event_id, source, occurrence)
);
CREATE INDEX inbox_by_age ON walpost.inbox (done_at);

-- Which slot marks a table: a mark stands for all subscribers of one slot. A row whose slot is not in
-- walpost.slots says nothing.
CREATE TABLE walpost.marked_tables (
    relation TEXT PRIMARY KEY, -- schema.table
    slot     TEXT NOT NULL
);

-- Who leads a slot, or led it last, and the keys of the advisory locks by which its sessions show that they live. Any
-- role can take any advisory lock, so who has one counts only if its role is the recorded one. Election is an UPDATE of
-- this row under the condition that no other was faster.
CREATE TABLE walpost.leader (
    slot        TEXT     PRIMARY KEY,
    holder      TEXT     NOT NULL,
    term        BIGINT   NOT NULL CHECK (term >= 0 AND term < 9007199254740992),  -- 2^53: a double holds it
    key         BIGINT,                                -- of the leader's session; NULL without a lease
    role        TEXT,
    reader_key  BIGINT,                                -- of the session that makes or reads the slot
    reader_role TEXT,
    former_keys BIGINT[] NOT NULL DEFAULT '{}'         -- of before: who takes one of them is named
);

-- A row for each connection that writes under a leadership. It locks its own FOR SHARE to the end of its transaction,
-- the next leader updates them all: so that one waits for the other, and no two sessions share the lock of a row.
CREATE TABLE walpost.fence (
    slot TEXT   NOT NULL,
    n    INT    NOT NULL,
    term BIGINT NOT NULL,
    PRIMARY KEY (slot, n)
);

-- Whose transaction locks a row here is the only one that does what the row says.
CREATE TABLE walpost.turns (
    slot TEXT NOT NULL,
    what TEXT NOT NULL,
    PRIMARY KEY (slot, what)
);

CREATE TABLE walpost.audit (
    id     BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot   TEXT        NOT NULL,
    at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    who    TEXT        NOT NULL,
    action TEXT        NOT NULL,
    what   JSONB       NOT NULL DEFAULT '{}',
    why    TEXT        NOT NULL DEFAULT ''
);
CREATE INDEX audit_by_slot ON walpost.audit (slot, id);

-- +goose Down
DROP TABLE walpost.slots, walpost.subscribers, walpost.owed, walpost.inbox, walpost.marked_tables, walpost.leader, walpost.fence, walpost.turns, walpost.audit;
