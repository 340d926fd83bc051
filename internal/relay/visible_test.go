package relay_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testdb"
)

// invisible commits an event whose transaction waits for a standby that does not exist: it is in the
// stream, and its row in no snapshot. committed ends the wait.
func invisible(t *testing.T, server *pgserver.Server, db *testdb.DB, id string) (committed func()) {
	t.Helper()
	writer, prober := session(t, db.DSN), session(t, db.DSN)
	admin := session(t, server.DSN("postgres"))
	set := func(names string) {
		t.Helper()
		mustExec(t, admin, `SET synchronous_commit = local`)
		mustExec(t, admin, `ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`)
		mustExec(t, admin, `SELECT pg_reload_conf()`)
	}
	waits := func(conn *pgx.Conn) func() bool {
		return func() bool {
			return db.Int(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = $1`, conn.PgConn().PID()) > 0
		}
	}
	// The setting is in force when the checkpointer has read it, which nothing tells but a commit that waits.
	db.Exec(`CREATE TABLE probe (n int)`)
	set("absent")
	probed, ended := make(chan error, 1), make(chan error, 1)
	enough := make(chan struct{})
	go func() {
		for {
			select {
			case <-enough:
				probed <- nil
				return
			default:
			}
			if _, err := prober.Exec(t.Context(), `INSERT INTO probe VALUES (1)`); err != nil {
				probed <- err
				return
			}
		}
	}()
	eventually(t, "the setting", waits(prober))
	close(enough)
	go func() {
		_, err := writer.Exec(t.Context(), `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', 'a', '{}')`, id)
		ended <- err
	}()
	eventually(t, "a commit that waits", waits(writer))
	return func() {
		t.Helper()
		set("")
		for _, ended := range []chan error{probed, ended} {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// settled lets a relay deliver a first event. What it still learned then would be a transaction of its own, and wait
// for the standby as well.
func settled(t *testing.T, db *testdb.DB, sub *kept) {
	t.Helper()
	insert(db, "first", "z")
	sub.await(t, "first")
	eventually(t, "the mark of the first event", func() bool { return unmarked(db) == 0 })
}

// With a synchronous standby an event can come before its row is visible: its mark waits for the row.
func TestRelay_marksARowThatBecomesVisibleAfterItsEvent(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	settled(t, db, sub)
	committed := invisible(t, server, db, "e")
	ev := sub.await(t, "e")
	eventually(t, "a mark that finds no row", func() bool { return metric(t, o, "walpost_record_errors_total", "") > 0 })
	if got := confirmed(t, db); got > ev.Position.Commit {
		t.Errorf("confirmed %v, beyond the unmarked event at %v", got, ev.Position.Commit)
	}
	committed()
	eventually(t, "the mark", func() bool { return unmarked(db) == 0 })
	eventually(t, "the slot has passed the event", passed(t, db, ev))
	r.shutDown()
}

// The row becomes visible just after the mark has looked for it. That its transaction has ended by then
// does not mean that the row is gone.
func TestRelay_marksARowThatBecomesVisibleWhileItLooks(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	// Between the statement of the mark and the next one there is time for a commit.
	db.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	db.Exec(`CREATE TRIGGER wait AFTER UPDATE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION wait()`)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	settled(t, db, sub)
	gate := session(t, db.DSN)
	mustExec(t, gate, `SELECT pg_advisory_lock(1)`)
	committed := invisible(t, server, db, "e")
	eventually(t, "a mark that has looked", func() bool {
		return db.Int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`) > 0
	})
	committed()
	mustExec(t, gate, `SELECT pg_advisory_unlock(1)`)
	eventually(t, "the slot has passed the event", passed(t, db, sub.await(t, "e")))
	if got := unmarked(db); got != 0 {
		t.Errorf("%d rows below the slot are not marked", got)
	}
	r.shutDown()
}
