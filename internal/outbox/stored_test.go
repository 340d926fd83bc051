package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func TestLook_findsRowsOfTablesOfAnyShape(t *testing.T) {
	db := testdb.New(t)
	const id = "6f7c6c1e-8d0c-4b5e-9d62-0f6f5a8f8a11"
	for name, test := range map[string]struct{ columns, values, want string }{
		"published at a time": {
			"event_id text, event_type text, payload json, published_at timestamptz, attempts int", "'" + id + "', 't', '{}', '2026-01-31 08:00:00+00', 3",
			"marks true, published true at 2026-01-31 08:00:00+00, 3 attempts"},
		"not yet": {
			"event_id text, event_type text, payload json, published_at timestamptz", "'" + id + "', 't', '{}', NULL",
			"marks true, published false at , 0 attempts"},
		"a boolean with its time, and a uuid": {
			"id uuid, type text, payload json, delivered bool, delivered_at date", "'" + id + "', 't', '{}', true, '2026-01-31'",
			"marks true, published true at 2026-01-31, 0 attempts"},
		"a boolean alone": {
			"id uuid, type text, payload json, delivered bool NOT NULL", "'" + id + "', 't', '{}', false",
			"marks true, published false at , 0 attempts"},
		"no such column": {
			"id uuid, type text, payload json", "'" + id + "', 't', '{}'",
			"marks false, published false at , 0 attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			db.Exec(`DROP TABLE IF EXISTS looked`)
			db.Exec(`CREATE TABLE looked (` + test.columns + `)`)
			db.Exec(`INSERT INTO looked VALUES (` + test.values + `)`)
			table := inspect(t, db, &outbox.Source{Name: "looked", Schema: "public", Table: "looked"})
			findByID := func(id string) (found []outbox.Stored) {
				t.Helper()
				err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
					found, err = table.FindByID(t.Context(), tx, id)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return found
			}
			found := findByID(id)
			if len(found) != 1 {
				t.Fatalf("found %v", found)
			}
			s := found[0]
			if got := fmt.Sprintf("marks %v, published %v at %s, %d attempts", s.Marks, s.Published, s.PublishedAt, s.Attempts); got != test.want || s.ID != id {
				t.Errorf("%s: got %s, want %s", s.ID, got, test.want)
			}
			if found := findByID("no uuid"); len(found) != 0 {
				t.Errorf("another id finds %v", found)
			}
		})
	}
}

func TestLook_knowsWhenAnUnpublishedRowWasCommitted(t *testing.T) {
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"track_commit_timestamp": "on"}))
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('e1', 't', '{}')`)
	table := inspect(t, db, &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"})
	for published, known := range map[bool]bool{false: true, true: false} {
		db.Exec(`UPDATE outbox SET published_at = CASE WHEN $1 THEN now() END`, published)
		err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
			found, err := table.FindByID(t.Context(), tx, "e1")
			if err == nil && (len(found) != 1 || found[0].CommittedAt.IsZero() == known) {
				t.Errorf("published %v: %+v", published, found)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
