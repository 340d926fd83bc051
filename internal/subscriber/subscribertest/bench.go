package subscribertest

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// bench is a database, a subscriber that works on it, and ways to look at what it did.
type bench struct {
	build Build
	db    *testdb.DB
	sub   subscriber.Subscriber
}

func newBench(t *testing.T, build Build) *bench {
	t.Helper()
	db := testdb.New(t)
	// The write side: the lessons of all events are completed before the first event is handled.
	for _, delivery := range lessons(40) {
		_, err := db.Pool.Exec(t.Context(), `
			INSERT INTO public.lesson_progress (user_id, lesson_id, track_slug, lesson_slug, completed, completed_at, event_id)
			SELECT (p->>'user_id')::bigint, (p->>'lesson_id')::bigint, p->>'track_slug', p->>'lesson_slug',
				true, (p->>'occurred_at')::timestamptz, p->>'event_id' FROM CAST($1 AS jsonb) AS p`,
			string(delivery.Payload))
		if err != nil {
			t.Fatalf("complete lesson of %s: %v", delivery.ID, err)
		}
	}
	return &bench{build: build, db: db}
}

// clear takes away every effect and makes a new subscriber.
func (b *bench) clear(t *testing.T) {
	t.Helper()
	if _, err := b.db.Pool.Exec(t.Context(), `TRUNCATE `+strings.Join(b.effectTables(t), ", ")); err != nil {
		t.Fatalf("clear effect tables: %v", err)
	}
	b.sub = b.restarted(t)
}

func (b *bench) restarted(t *testing.T) subscriber.Subscriber { return b.build(t, b.db.Pinned, Slot) }

func (b *bench) batch() subscriber.BatchSubscriber { return b.sub.(subscriber.BatchSubscriber) }

func (b *bench) must(t *testing.T, sub subscriber.Subscriber, delivery subscriber.Delivery) {
	t.Helper()
	if err := sub.Handle(t.Context(), delivery); err != nil {
		t.Fatalf("Handle(%s): %v", delivery.ID, err)
	}
}

func (b *bench) mustBatch(t *testing.T, deliveries []subscriber.Delivery) {
	t.Helper()
	if err := b.batch().HandleBatch(t.Context(), deliveries); err != nil {
		t.Fatalf("HandleBatch of %d: %v", len(deliveries), err)
	}
}

// oneByOne is the effect, without its clock, of handling the deliveries one by one. It leaves no effect.
func (b *bench) oneByOne(t *testing.T, deliveries []subscriber.Delivery) string {
	t.Helper()
	for _, delivery := range deliveries {
		b.must(t, b.sub, delivery)
	}
	effect := withoutClock(t, b.dump(t))
	b.clear(t)
	return effect
}

// effectTables are all that a subscriber may have written to.
const effectTables = `
	SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
	WHERE schemaname = 'public' AND tablename NOT IN ('outbox', 'lesson_progress') AND tablename NOT LIKE '%goose%'
		OR schemaname = 'walpost' AND tablename = 'inbox'
	ORDER BY 1`

func (b *bench) effectTables(t *testing.T) []string {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), effectTables)
	if err != nil {
		t.Fatalf("list tables: %v", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("list tables: %v", err)
	}
	return tables
}

// dump is every row of every effect table, a line each.
func (b *bench) dump(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, table := range b.effectTables(t) {
		rows, err := b.db.Pool.Query(t.Context(), `SELECT to_jsonb(r)::text FROM `+table+` AS r ORDER BY 1`)
		if err != nil {
			t.Fatalf("read %s: %v", table, err)
		}
		values, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("read %s: %v", table, err)
		}
		for _, value := range values {
			lines = append(lines, table+" "+value)
		}
	}
	return strings.Join(lines, "\n")
}

// withoutClock replaces the columns that say when a row was written by whether they say so: they differ
// between two runs that do the same.
func withoutClock(t *testing.T, dump string) string {
	t.Helper()
	var lines []string
	for line := range strings.SplitSeq(dump, "\n") {
		table, row, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(row), &fields); err != nil {
			t.Fatalf("row of %s: %v", table, err)
		}
		for _, column := range []string{"created_at", "updated_at", "sent_at", "done_at"} {
			if value, ok := fields[column]; ok && string(value) != "null" {
				fields[column] = json.RawMessage(`"set"`)
			}
		}
		stripped, err := json.Marshal(fields)
		if err != nil {
			t.Fatalf("row of %s: %v", table, err)
		}
		lines = append(lines, table+" "+string(stripped))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (b *bench) same(t *testing.T, when, want string) {
	t.Helper()
	if got := b.dump(t); got != want {
		t.Errorf("rows %s:\n%s\nwant:\n%s", when, got, want)
	}
}

func (b *bench) sameButForTheClock(t *testing.T, when, want string) {
	t.Helper()
	if got := withoutClock(t, b.dump(t)); got != want {
		t.Errorf("rows %s:\n%s\nwant:\n%s", when, got, want)
	}
}

// now is the moment by the server's clock, which inbox records carry.
func (b *bench) now(t *testing.T) (at time.Time) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&at); err != nil {
		t.Fatalf("read the clock: %v", err)
	}
	return at
}

// lockEffects keeps everyone else from writing to the effect tables until unlock.
func (b *bench) lockEffects(t *testing.T) (unlock func()) {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	unlock = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE `+strings.Join(b.effectTables(t), ", ")+` IN EXCLUSIVE MODE`); err != nil {
		t.Fatalf("lock effect tables: %v", err)
	}
	return unlock
}

// whoWaits waits until a session of this database waits for a lock, and returns its pid.
func (b *bench) whoWaits(t *testing.T) (pid int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), awaitTimeout)
	defer cancel()
	for {
		err := b.db.Pool.QueryRow(ctx, `
			SELECT coalesce(max(pid), 0) FROM pg_stat_activity, pg_sleep(0.005)
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&pid)
		if err != nil {
			t.Fatalf("wait for the subscriber to write: %v", err)
		}
		if pid != 0 {
			return pid
		}
	}
}

func (b *bench) terminateWhoWaits(t *testing.T) {
	t.Helper()
	if _, err := b.db.Pool.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, b.whoWaits(t)); err != nil {
		t.Fatalf("terminate session: %v", err)
	}
}

// pool opens another pool on the database, in a role.
func (b *bench) pool(role string) *postgres.Pool { return b.db.Open("role=" + role) }

// wide opens a pool in which n sessions work at once.
func (b *bench) wide(n int) *postgres.Pool { return b.db.Open("pool_max_conns=" + strconv.Itoa(n)) }

func (b *bench) closedPool() *postgres.Pool {
	pool := b.db.Open()
	pool.Close()
	return pool
}

// outcome is that of a call in another goroutine.
type outcome chan error

func start(call func() error) outcome {
	done := make(outcome, 1)
	go func() { done <- call() }()
	return done
}

// wait returns the outcome, or fails the test when the call does not return.
func (o outcome) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-o:
		return err
	case <-time.After(awaitTimeout):
		t.Fatalf("the call did not return within %s", awaitTimeout)
		return nil
	}
}
