package relay_test

import (
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-316: a role that may only connect writes large messages, inside and outside transactions, or with a large prefix: the
// relay takes no memory for them, and events before, between and after them are delivered. Not in parallel: it measures what
// the process allocates.
func TestRelay_takesNoMemoryForMessagesOfStrangers(t *testing.T) {
	db := testdb.New(t)
	role := db.Name + "_stranger"
	db.Exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() { db.Exec("DROP ROLE " + role) })
	stranger, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close(t.Context())
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	insert(db, "first", "a")
	sub.await(t, "first")
	if _, err := stranger.Exec(t.Context(), "SET ROLE "+role); err != nil {
		t.Fatal(err)
	}
	const bytes = 48 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	want := []string{"first"}
	for i, sql := range []string{
		`SELECT pg_logical_emit_message(true, 'x', repeat('x', $1))`,
		`SELECT pg_logical_emit_message(false, 'x', repeat('x', $1))`,
		`SELECT pg_logical_emit_message(true, repeat('x', $1), 'x')`,
	} {
		if _, err := stranger.Exec(t.Context(), sql, bytes); err != nil {
			t.Fatal(err)
		}
		id := numbered("between", 3)[i]
		insert(db, id, "a")
		sub.await(t, id)
		want = append(want, id)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > bytes {
		t.Errorf("%d MiB were allocated for messages of %d MiB", got>>20, bytes>>20)
	}
	once(t, sub, want)
	if h := r.Health(); !h.Ready {
		t.Errorf("health is %+v", h)
	}
}
