-- A service of board games. A move changes the game and writes its row in one transaction; the revision is drawn under the
-- lock on the game, so that revisions are consecutive and commit in their order.
CREATE TABLE games (
    id       text PRIMARY KEY,
    revision bigint NOT NULL DEFAULT 0,
    board    text   NOT NULL DEFAULT '.........'
);

CREATE TABLE outbox (
    event_id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    revision       bigint      NOT NULL,
    event_type     text        NOT NULL,
    payload        jsonb       NOT NULL,              -- the whole state: a page needs no other way to it
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz,
    UNIQUE (aggregate_type, aggregate_id, revision)   -- by which a client that comes back is sent what it missed
);
CREATE INDEX outbox_unpublished ON outbox (created_at) WHERE published_at IS NULL;

CREATE FUNCTION move(game text, place int, player text) RETURNS bigint LANGUAGE sql AS $$
    WITH changed AS (
        INSERT INTO games AS g (id, revision, board) VALUES (game, 1, overlay('.........' PLACING player FROM place))
        ON CONFLICT (id) DO UPDATE SET revision = g.revision + 1, board = overlay(g.board PLACING player FROM place)
        RETURNING id, revision, board
    )
    INSERT INTO outbox (aggregate_type, aggregate_id, revision, event_type, payload)
    SELECT 'game', id, revision, 'game.moved', jsonb_build_object('board', board, 'player', player, 'place', place) FROM changed
    RETURNING revision
$$;
