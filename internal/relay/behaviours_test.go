package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// Receivers that change their behaviour, and what the tests of debt ask of a relay and its database.

type handler = func(context.Context, subscriber.Delivery) error

// taking is a receiver that is well.
func taking(context.Context, subscriber.Delivery) error { return nil }

// hanging takes a delivery and never answers.
func hanging(ctx context.Context, _ subscriber.Delivery) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// changing is a subscriber that behaves as it was told last.
type changing struct {
	*kept
	handle atomic.Pointer[handler]
}

func newChanging(name string, first handler) *changing {
	c := &changing{}
	c.behave(first)
	c.kept = keeping(func(ctx context.Context, d subscriber.Delivery) error { return (*c.handle.Load())(ctx, d) })
	c.kept.Named(name)
	return c
}

// Named hides what gives a lone fake another name: this one keeps its own, whatever other fakes there are.
func (c *changing) Named() {}

func (c *changing) behave(h handler) { c.handle.Store(&h) }

// tally is a subscriber that keeps no ledger, for many events: how many it took, and which of each key last.
type tally struct {
	name   string
	handle handler
	mu     sync.Mutex
	taken  int                       // guarded by mu
	last   map[string]event.Position // of each key; guarded by mu
	swaps  []string                  // ids that came after later ones of their key; guarded by mu
}

func newTally(name string, h handler) *tally {
	return &tally{name: name, handle: h, last: make(map[string]event.Position)}
}

func (c *tally) Name() string      { return c.name }
func (c *tally) Wants(string) bool { return true }

func (c *tally) Handle(ctx context.Context, d subscriber.Delivery) error {
	if err := c.handle(ctx, d); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Position.Compare(c.last[d.Key]) <= 0 {
		c.swaps = append(c.swaps, d.ID)
	}
	c.last[d.Key] = d.Position
	c.taken++
	return nil
}

func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// await waits until n events were taken, and fails if any came twice or too late.
func (c *tally) await(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s takes %d events", c.name, n), func() bool { return c.count() >= n })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.swaps) > 0 || c.taken > n {
		t.Errorf("%s took %d events, want %d; of their keys came too late or twice: %v", c.name, c.taken, n, c.swaps)
	}
}

// owing lets what stands still fall into debt soon.
func owing(o relay.Options) relay.Options {
	for i := range o.Subscriptions {
		o.Subscriptions[i].Lane.StallAfter = 300 * time.Millisecond
	}
	return o
}

// owed counts a subscriber's deliveries in a state.
func owed(db *testdb.DB, name, state string) int64 {
	return db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = $1 AND state = $2`, name, state)
}

// awaitOwed waits until so many deliveries of a subscriber wait in the debt.
func awaitOwed(t *testing.T, db *testdb.DB, name string, n int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d owed to %s", n, name), func() bool { return owed(db, name, "waiting") == n })
}

// book is the debt as people change it.
func book(db *testdb.DB) *debt.Store { return debt.NewStore(db.Pinned, db.Name) }

// of returns the part of Progress that belongs to a subscriber.
func (r *running) of(name string) relay.Subscriber {
	subs := r.Progress().Subscribers
	i := slices.IndexFunc(subs, func(s relay.Subscriber) bool { return s.Name == name })
	if i < 0 {
		return relay.Subscriber{}
	}
	return subs[i]
}

// refuse makes the database refuse new rows of a table, and returns what makes it take them again.
func refuse(db *testdb.DB, table string) (allow func()) {
	db.Exec(`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room here'; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION refuse()`)
	return func() { db.Exec(`DROP TRIGGER refuse ON ` + table) }
}

// logbook is a log that a test can read.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logged makes the relay's log readable.
func logged(t *testing.T, o relay.Options) (relay.Options, *logbook) {
	l := &logbook{}
	o.Log = slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), l), nil))
	return o, l
}
