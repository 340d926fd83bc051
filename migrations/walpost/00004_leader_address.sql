-- +goose Up
-- Where the ops API of the leader answers, host:port; '' where it is not known. A standby sends there each request for what
-- the leader alone knows.
ALTER TABLE walpost.leader ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE walpost.leader DROP COLUMN address;
