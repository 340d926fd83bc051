package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-315: the position of an event tells a receiver that reads on a replica when the event's row is there, by the statement
// that docs/webhooks.md has.
func TestProgram_positionTellsWhenAReplicaHasTheRow(t *testing.T) {
	page, err := os.ReadFile(moduleRoot + "/docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Reading from a replica")
	block := regexp.MustCompile("(?s)```sql\n(.*?);\n```").FindStringSubmatch(section)
	if block == nil {
		t.Fatal("the page has no statement")
	}
	literal := regexp.MustCompile(`'[0-9a-f]{8}-[0-9a-f]{16}-[0-9a-f]{8}'`)
	if len(literal.FindAllString(block[1], -1)) != 1 {
		t.Fatalf("not one position stands in %s", block[1])
	}
	statement := literal.ReplaceAllString(block[1], "$$1::text")

	primary := testdb.NewServer(t, nil)
	db := testdb.On(t, primary)
	standby := testdb.NewStandby(t, primary, nil)
	db.Pool.Reset()
	replica, err := pgx.Connect(t.Context(), standby.DSN(db.Name))
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Close(context.WithoutCancel(t.Context()))
	askReplica := func(sql string, args ...any) (yes bool) {
		t.Helper()
		if err := replica.QueryRow(t.Context(), sql, args...).Scan(&yes); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return yes
	}
	hasRow := func(id string) bool {
		return askReplica(`SELECT EXISTS (SELECT FROM public.outbox WHERE event_id = $1)`, id)
	}

	type arrival struct{ id, position string }
	arrivals := make(chan arrival, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrivals <- arrival{r.Header.Get("webhook-id"), r.Header.Get("Walpost-Position")}
	}))
	t.Cleanup(receiver.Close)
	startHooks(t, db, webhookLine("hook", receiver.URL))

	insertHookEvents(db, 1, 1)
	first := <-arrivals
	waitFor(t, "the replica", func() bool { return askReplica(statement, first.position) })
	if _, err := replica.Exec(t.Context(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pause", func() bool { return askReplica(`SELECT pg_get_wal_replay_pause_state() = 'paused'`) })
	insertHookEvents(db, 2, 2)
	second := <-arrivals
	if askReplica(statement, second.position) || hasRow(second.id) {
		t.Errorf("a replica that replays nothing is said to have %+v", second)
	}
	if _, err := replica.Exec(t.Context(), `SELECT pg_wal_replay_resume()`); err != nil {
		t.Fatal(err)
	}
	ids := insertHookEvents(db, 3, 40)
	for at, n := second, 0; ; n++ {
		waitFor(t, "the replica", func() bool { return askReplica(statement, at.position) })
		if !hasRow(at.id) {
			t.Errorf("the replica is said to have %+v, and has no such row", at)
		}
		if n == len(ids) {
			break
		}
		at = <-arrivals
		if !slices.Contains(ids, at.id) {
			t.Errorf("%+v comes again", at)
		}
	}
}
