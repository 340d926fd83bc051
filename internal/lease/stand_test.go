package lease

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
)

// What the other sessions of a relay that froze have left open would hold up the repair of the next.
func TestLease_endsAllSessionsOfALeaderThatFroze(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	config, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	frozen := elsewhere("frozen")
	db.Exec(`INSERT INTO walpost.leader (slot, holder, term, key, role) VALUES ($1, $2, 7, 42, session_user)`, db.Name, frozen)
	config.RuntimeParams["application_name"] = application(db.Name, frozen)
	for _, key := range []int{42, 1} {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		if _, err := conn.Exec(t.Context(), `SELECT pg_catalog.pg_advisory_lock($1)`, key); err != nil {
			t.Fatal(err)
		}
	}
	leads(t, db, running(t, db, elsewhere("next")))
	limit := time.After(10 * time.Second) // a session that is ended takes a moment to go
	for db.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, config.RuntimeParams["application_name"]) > 0 {
		select {
		case <-limit:
			t.Fatal("sessions of the frozen one are left")
		default:
		}
	}
}
