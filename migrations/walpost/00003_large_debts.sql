-- +goose Up
-- The keys that have a dead letter, so that their number costs nothing; and what a repair has recorded and the stream may
-- still bring, so that a start does not read everything that is owed to find it. "NOT IN" as in owed_failing: only a
-- statement that says the same can use them.
CREATE INDEX owed_dead_key ON walpost.owed (slot, subscriber, key) WHERE state NOT IN ('waiting', 'paid');
CREATE INDEX owed_made_up ON walpost.owed (slot, subscriber, epoch, bound) WHERE made_up AND state NOT IN ('paid');

-- +goose Down
DROP INDEX walpost.owed_dead_key, walpost.owed_made_up;
