package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-419: what a client has missed is read by the columns as they are, and of its own aggregate alone.
func TestRevisions_areThoseOfOneAggregateInOrder(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE games (id int PRIMARY KEY, type text DEFAULT 't', payload text DEFAULT '{}', aggregate_type varchar(20), aggregate_id bigint, revision bigint)`)
	db.Exec(`INSERT INTO games (id, aggregate_type, aggregate_id, revision) SELECT 1000 - n, 'game', 7, n FROM generate_series(3, 30) n
		UNION ALL SELECT 2000, 'game', 8, 4 UNION ALL SELECT 2001, 'room', 7, 5 UNION ALL SELECT 2002, 'game', 7, NULL`)
	db.Exec(`CREATE INDEX games_revisions ON games (aggregate_type, aggregate_id, revision)`)
	db.Exec(`CREATE TABLE notes (id int PRIMARY KEY, type text DEFAULT 't', payload jsonb, aggregate_id uuid DEFAULT 'a0000000-0000-4000-8000-000000000001')`)
	db.Exec(`INSERT INTO notes (id, payload) SELECT n, jsonb_build_object('rev', n * 10) FROM generate_series(1, 12) n`)
	games, notes := inspected(t, db, outbox.Columns{}, "games"), inspected(t, db, outbox.Columns{Revision: "payload.rev"}, "notes")
	const note = "a0000000-0000-4000-8000-000000000001"
	for _, test := range []struct {
		table     *outbox.Table
		aggregate string
		after     int64
		limit     int
		bytes     int
		want      string
	}{
		{games, "game/7", 27, 10, 1 << 20, "28 29 30 kept"},
		{games, "game/7", 2, 3, 1 << 20, "3 4 5 more"},
		{games, "game/7", 3, 3, 1 << 20, "4 5 6 kept more"},
		{games, "game/7", 3, 100, 1, "4 kept more"},
		{games, "game/7", 30, 100, 1 << 20, "kept"},
		{games, "game/7", 31, 100, 1 << 20, ""},
		{games, "game/8", 0, 100, 1 << 20, "4"},
		{games, "room/7", 0, 100, 1 << 20, "5"},
		{games, "game/9", 0, 100, 1 << 20, ""},
		{games, "7", 0, 100, 1 << 20, ""},
		{games, "game/x", 0, 100, 1 << 20, "no aggregate"},
		{games, "game/7'; DROP TABLE games; --", 0, 100, 1 << 20, "no aggregate"},
		{notes, note, 100, 10, 1 << 20, "110 120 kept"},
		{notes, "note", 0, 10, 1 << 20, "no aggregate"},
	} {
		var found outbox.Revisions
		err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
			found, err = test.table.Revisions(t.Context(), tx, test.aggregate, test.after, test.limit, test.bytes)
			return err
		})
		var got []string
		for _, e := range found.Events {
			got = append(got, e.Revision)
		}
		if found.Kept {
			got = append(got, "kept")
		}
		if found.More {
			got = append(got, "more")
		}
		if errors.Is(err, outbox.ErrNoAggregate) {
			got = []string{"no aggregate"}
		} else if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s after %d: got %q, want %q", test.aggregate, test.after, text, test.want)
		}
	}
}

func inspected(t *testing.T, db *testdb.DB, columns outbox.Columns, name string) (table *outbox.Table) {
	t.Helper()
	source := &outbox.Source{Name: name, Schema: "public", Table: name, Columns: columns}
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
		table, err = source.Inspect(t.Context(), tx)
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("inspect %s: %w", name, err))
	}
	return table
}
