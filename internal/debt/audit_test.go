package debt_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	recorded "github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-52: the sequence of the audit stands behind its table, on a number that is taken or on one that is free and
// lower than the last.
func TestAudit_refusesAPersonsChangeThatCannotBeNoted(t *testing.T) {
	for name, numbers := range map[string]string{"taken": "1", "lower than the last": "7"} {
		t.Run(name, func(t *testing.T) {
			db := testdb.New(t)
			store := open(t, db)
			db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'a')`, slot)
			db.Exec(`INSERT INTO walpost.audit (id, slot, who, action) OVERRIDING SYSTEM VALUE VALUES (`+numbers+`, $1, 'me', 'pause')`, slot)
			err := store.Pause(t.Context(), "a", "me", "a test")
			if err == nil || !strings.Contains(err.Error(), "setval(pg_get_serial_sequence('walpost.audit', 'id')") {
				t.Errorf("the pause ends with %v, want the SQL that sets the sequence", err)
			}
			if got := db.Text(`SELECT state FROM walpost.subscribers`); got != "live" {
				t.Errorf("the subscriber is %s after a change that was refused", got)
			}
			db.Exec(`SELECT setval(pg_get_serial_sequence('walpost.audit', 'id'), (SELECT max(id) FROM walpost.audit))`)
			if err := store.Pause(t.Context(), "a", "me", "a test"); err != nil {
				t.Error(err)
			}
		})
	}
}

// What the relay notes of itself stops nothing, whatever is wrong with the note.
func TestNoteByRelay_takesNothingBackWhenItFails(t *testing.T) {
	for name, spoil := range map[string]string{
		"number is taken": `INSERT INTO walpost.audit (id, slot, who, action) OVERRIDING SYSTEM VALUE VALUES (1, 's', 'me', 'pause')`,
		"trigger refuses": `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
			CREATE TRIGGER no BEFORE INSERT ON walpost.audit FOR EACH ROW EXECUTE FUNCTION no()`,
		"table is gone": `ALTER TABLE walpost.audit RENAME TO gone`,
	} {
		t.Run(name, func(t *testing.T) {
			db := testdb.New(t)
			db.Exec(spoil)
			wantNoted(t, db, time.Minute)
		})
	}
	t.Run("table is locked", func(t *testing.T) {
		db := testdb.New(t)
		locked, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer locked.Rollback(context.WithoutCancel(t.Context()))
		if _, err := locked.Exec(t.Context(), `LOCK TABLE walpost.audit`); err != nil {
			t.Fatal(err)
		}
		wantNoted(t, db, 30*time.Second)
	})
}

// wantNoted has a transaction write something and a note that fails, and looks whether the first is there.
func wantNoted(t *testing.T, db *testdb.DB, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("the note waits for ever"))
	defer cancel()
	err := postgres.InTx(ctx, db.Pinned, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO walpost.subscribers (slot, name) VALUES ('s', 'written')`); err != nil {
			return err
		}
		if err := recorded.NoteByRelay(ctx, tx, "s", "walpost", "repair", map[string]any{"rows": 1}, "a test"); err == nil {
			t.Error("the note was written")
		}
		return nil
	})
	if err != nil {
		t.Errorf("what was noted ends with %v", err)
	}
	if got := db.Int(`SELECT count(*) FROM walpost.subscribers WHERE name = 'written'`); got != 1 {
		t.Errorf("%d rows of what was noted, want 1", got)
	}
}
