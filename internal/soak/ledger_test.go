//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// ledger is a subscriber that writes what it is given into a table, and looks in another table for how it
// is to behave: "ok", "down" (fails always), "hang" (until the deadline), "slow 1s", "refuse KEY" (fails
// for one key, or with * at its end for all that begin so). Both outlive the process, and a test can change the second at any time. The tables are
// unlogged, so that they do not add to the WAL that is measured.
type ledger struct {
	name string
	pool *postgres.Pool
}

const ledgerTables = `
	CREATE SCHEMA soak;
	CREATE UNLOGGED TABLE soak.ledger (n bigserial, subscriber text NOT NULL, event_id text NOT NULL, occurrence text NOT NULL, replay boolean NOT NULL);
	CREATE UNLOGGED TABLE soak.control (subscriber text PRIMARY KEY, behaviour text NOT NULL)`

func (l *ledger) Name() string      { return l.name }
func (l *ledger) Wants(string) bool { return true }

func (l *ledger) Handle(ctx context.Context, d subscriber.Delivery) error {
	err := l.HandleBatch(ctx, []subscriber.Delivery{d})
	if partial := (*subscriber.BatchError)(nil); errors.As(err, &partial) {
		return partial.Failed[0]
	}
	return err
}

func (l *ledger) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	var behaviour string
	err := l.pool.QueryRow(ctx, `SELECT behaviour FROM soak.control WHERE subscriber = $1`, l.name).Scan(&behaviour)
	if err != nil {
		return fmt.Errorf("read behaviour of %s: %w", l.name, err)
	}
	refused := make(map[int]error)
	switch word, argument, _ := strings.Cut(behaviour, " "); word {
	case "down":
		return errors.New("down as told")
	case "hang":
		<-ctx.Done()
		return context.Cause(ctx)
	case "slow":
		wait, err := time.ParseDuration(argument)
		if err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case "refuse":
		for i, d := range deliveries {
			if prefix, all := strings.CutSuffix(argument, "*"); d.Key == argument || all && strings.HasPrefix(d.Key, prefix) {
				refused[i] = errors.New("key refused as told")
			}
		}
	}
	var ids, occurrences []string
	var replays []bool
	for i, d := range deliveries {
		if refused[i] == nil {
			ids, occurrences, replays = append(ids, d.ID), append(occurrences, d.Occurrence), append(replays, d.Replay)
		}
	}
	_, err = l.pool.Exec(ctx, `
		INSERT INTO soak.ledger (subscriber, event_id, occurrence, replay)
		SELECT $1, id, occurrence, replay
		FROM unnest($2::text[], $3::text[], $4::bool[]) WITH ORDINALITY AS e (id, occurrence, replay, i) ORDER BY i`, l.name, ids, occurrences, replays)
	if err != nil {
		return fmt.Errorf("write ledger of %s: %w", l.name, err)
	}
	if len(refused) > 0 {
		return &subscriber.BatchError{Failed: refused}
	}
	return nil
}

// behave tells a ledger how to behave from now on.
func behave(db *testdb.DB, name, behaviour string) {
	db.Exec(`INSERT INTO soak.control VALUES ($1, $2) ON CONFLICT (subscriber) DO UPDATE SET behaviour = excluded.behaviour`, name, behaviour)
}

// withLedgers makes the tables of the ledgers, who all behave well.
func withLedgers(db *testdb.DB, names ...string) {
	db.Exec(ledgerTables)
	for _, name := range names {
		behave(db, name, "ok")
	}
}

// wantAll checks that each ledger has every event.
func wantAll(t *testing.T, db *testdb.DB, names ...string) {
	t.Helper()
	if db.Int(`SELECT count(*) FROM outbox`) == 0 {
		t.Error("nothing was written, so nothing was tested")
	}
	for _, name := range names {
		missing := db.Int(`
			SELECT count(*) FROM outbox o
			WHERE NOT EXISTS (SELECT FROM soak.ledger l WHERE l.subscriber = $1 AND l.event_id = o.event_id)`, name)
		if missing != 0 {
			t.Errorf("%s: %d events are missing", name, missing)
		}
	}
	if dead := debttest.Dead(db); dead != 0 {
		t.Errorf("%d dead letters, want none", dead)
	}
}

// wantOrder checks that the events of a key came in the order in which they were written, counting each
// at its first time: after a kill some come again. What is replayed is an order of its own.
func wantOrder(t *testing.T, db *testdb.DB) {
	t.Helper()
	swapped := db.Int(`
		WITH came AS (SELECT subscriber, replay, event_id, min(n) AS n FROM soak.ledger GROUP BY 1, 2, 3),
		pairs AS (
			SELECT n, lag(n) OVER (PARTITION BY subscriber, replay, partition_key ORDER BY id) AS before
			FROM came JOIN outbox USING (event_id))
		SELECT count(*) FROM pairs WHERE before > n`)
	if swapped != 0 {
		t.Errorf("%d events came before the one written before them under their key", swapped)
	}
}

// repeats is how often an event came again.
func repeats(db *testdb.DB) int64 {
	return db.Int(`SELECT count(*) - count(DISTINCT (subscriber, event_id)) FROM soak.ledger`)
}

const (
	writers       = 4 // that write at the same time
	keysPerWriter = 250
)

// insert writes total events in transactions of size rows, or without end if total is 0, until ctx ends.
// rate is how many a second, 0 for as many as it can. Each key belongs to one writer, so that the order of
// ids is the order of commits within it.
func insert(ctx context.Context, t *testing.T, db *testdb.DB, total, size, rate int) {
	var wg sync.WaitGroup
	var written atomic.Int64
	for w := range writers {
		wg.Go(func() {
			next := 0
			write := func() bool {
				if total > 0 && written.Add(int64(size)) > int64(total) || ctx.Err() != nil {
					return false
				}
				_, err := db.Pool.Exec(context.WithoutCancel(ctx), insertEvents, w, next, size, keysPerWriter)
				if err != nil {
					t.Errorf("write events: %v", err)
					return false
				}
				next += size
				return true
			}
			if rate == 0 {
				for write() {
				}
				return
			}
			writing, stop := context.WithCancel(ctx)
			defer stop()
			every(writing, time.Second*time.Duration(size*writers)/time.Duration(rate), func() {
				if !write() {
					stop()
				}
			})
		})
	}
	wg.Wait()
}

// A row is about 100 bytes.
const insertEvents = `
	INSERT INTO outbox (event_id, event_type, partition_key, payload)
	SELECT format('%s-%s', $1::int, n), 'soak.written', format('key-%s-%s', $1::int, n % $4::int),
	       jsonb_build_object('n', n, 'text', repeat('x', 40))
	FROM generate_series($2::int, $2::int + $3::int - 1) AS n`

// endByLosingTheSlot ends a soak whose relay has stopped: the slot is dropped, one more event is written, and a relay
// repairs the gap from the table. It sends what is not marked, so a mark that is not true is a lost event, and an event
// that was had and is not marked comes again. Then each subscriber's ledger is compared with the outbox, and the marks
// with the ledgers.
func endByLosingTheSlot(t *testing.T, db *testdb.DB, o relayOptions) {
	t.Helper()
	dropSlot(t, db)
	came := make(map[string]int64)
	for _, name := range o.subscribers {
		behave(db, name, "ok")
		came[name] = db.Int(`SELECT count(*) FROM soak.ledger WHERE subscriber = $1`, name)
	}
	open := db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`)
	owed := debttest.Waiting(db)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('after-the-slot-was-lost', 'soak.written', 'the-last-key', '{}')`)
	relay := startLedgers(t, db, o)
	relay.AwaitStreaming()
	testprogram.AwaitPublished(t, db, 10*time.Minute)
	relay.Stop()
	wantAll(t, db, o.subscribers...)
	wantOrder(t, db)
	wantMarks(t, db, o.subscribers...)
	for _, name := range o.subscribers {
		if got, most := db.Int(`SELECT count(*) FROM soak.ledger WHERE subscriber = $1`, name)-came[name], open+owed+1; got > most {
			t.Errorf("%s: %d deliveries after the slot was lost, and %d rows were not marked, %d deliveries owed", name, got, open, owed)
		}
	}
}

// wantMarks checks that a row which is marked has come to each ledger.
func wantMarks(t *testing.T, db *testdb.DB, names ...string) {
	t.Helper()
	for _, name := range names {
		untrue := db.Int(`
			SELECT count(*) FROM outbox o WHERE published_at IS NOT NULL
			AND NOT EXISTS (SELECT FROM soak.ledger l WHERE l.subscriber = $1 AND l.event_id = o.event_id)`, name)
		if untrue != 0 {
			t.Errorf("%d rows are marked, and %s has not had them", untrue, name)
		}
	}
}
