package relay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-318: while the slot is being made the relay is starting, not ready, and says what it waits for.
func TestRelay_isStartingWhileItsSlotIsMade(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	writer, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close(t.Context())
	if _, err := writer.Exec(t.Context(), `BEGIN; SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	r := start(t, withLease(t, options(t, db, keeping(nil)), db.DSN))
	waits := fmt.Sprintf("pid %d", writer.PgConn().PID())
	eventually(t, "it says what it waits for", func() bool {
		h := r.Health()
		if h.State != relay.Starting || h.Ready || strings.Contains(fmt.Sprint(h.Problems), "does not lead") {
			t.Fatalf("while the slot is made its health is %+v", h)
		}
		return strings.Contains(fmt.Sprint(h.Problems), waits)
	})
	if _, err := writer.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	r.awaitStreaming()
}
