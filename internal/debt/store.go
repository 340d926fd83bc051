// Package debt keeps what is owed in the table walpost.owed: deliveries that left the stream's hands and
// are sent again later, or wait for a person. It is the only package that writes this table. Package lane decides
// what becomes debt and when it is paid, and calls this package through lane.Ower; package admin asks for what people
// change by hand. This package decides only what a row needs: whether it is removed, kept as paid, or still to be marked,
// and which keys a read leaves out.
package debt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

const (
	// maxError is how many bytes of an error are kept with a delivery: a receiver's answer can be long.
	maxError = 4096
	// maxRows and maxBytes bound one statement, and with it the memory of a large debt.
	maxRows  = 1000
	maxBytes = 4 << 20
)

// Gone says why an event that was owed by reference cannot be sent any more. More follows it where another event has
// taken the row's primary key. It is for people: the fact is Event.Lost.
const Gone = "the outbox row is gone and no copy was kept"

// Store is the debt of one slot. It is safe for concurrent use, also by other processes: people change
// the debt while the relay pays it.
type Store struct {
	pool  *postgres.Pool
	slot  string
	fence *store.Fence // nil for people, who may change the debt under any leadership
	// maxEvent is the size in bytes above which an event that is owed by reference is not sent; 0 is none.
	maxEvent int

	tables outbox.Tables
}

var _ lane.Ower = (*Store)(nil)

// NewStore returns the debt of a slot. Before Use it copies every event and marks no row.
func NewStore(pool *postgres.Pool, slot string) *Store { return &Store{pool: pool, slot: slot} }

// Within lets the store write only under a leadership. Call it before the store is used.
func (s *Store) Within(fence *store.Fence) *Store {
	s.fence = fence
	return s
}

// Limit makes an event that is read from its row, and has more than so many bytes, an invalid one. Call it
// before the store is used.
func (s *Store) Limit(maxEvent int) *Store {
	s.maxEvent = maxEvent
	return s
}

// Use tells the sources' tables as they were last inspected: which rows a debt may point to, and where
// they are marked.
func (s *Store) Use(tables []*outbox.Table) { s.tables.Use(tables) }

// current returns the tables by source.
func (s *Store) current() map[string]*outbox.Table { return s.tables.BySource() }

// inTx runs fn in a transaction, and again when that lost a deadlock: a person and the relay may change the
// same deliveries in any order, and the relay marks the same rows elsewhere.
func (s *Store) inTx(ctx context.Context, fn func(pgx.Tx) error) error {
	for again := 5; ; again-- {
		err := postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
			if s.fence != nil {
				if err := s.fence.HoldTx(ctx, tx); err != nil {
					return err
				}
			}
			return fn(tx)
		})
		if postgres.Code(err) != "40P01" || again == 0 { // deadlock_detected
			return err
		}
	}
}

// Count is a number of owed deliveries.
type Count struct {
	Subscriber, State string
	Number            int64
}

// Counts tells how much each subscriber is owed, by state. It reads an index over everything owed.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT subscriber, state, count(*) FROM walpost.owed
		WHERE slot = $1 AND state IN ('waiting', 'dead') GROUP BY 1, 2 ORDER BY 1, 2`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("count owed deliveries: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Count])
	if err != nil {
		return nil, fmt.Errorf("count owed deliveries: %w", err)
	}
	return counts, nil
}

// Lost counts, by subscriber, the dead letters that no one can send any more: the owner of the outbox has
// deleted or replaced the row, and there is no copy. They stay until a person discards them.
func (s *Store) Lost(ctx context.Context) (map[string]int64, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT subscriber, count(*) FROM walpost.owed
		WHERE slot = $1 AND state = 'dead' AND lost GROUP BY 1`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("count lost events: %w", err)
	}
	lost := make(map[string]int64)
	var subscriber string
	var number int64
	if _, err := pgx.ForEachRow(rows, []any{&subscriber, &number}, func() error {
		lost[subscriber] = number
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count lost events: %w", err)
	}
	return lost, nil
}

// AbsentSources counts what waits for a source that is not in the configuration, by subscriber and source.
func (s *Store) AbsentSources(ctx context.Context) (map[string]map[string]int64, error) {
	return AbsentSources(ctx, s.pool, s.slot, s.sources())
}

// AbsentSources counts what waits by reference to a row of another source than those that are named, by subscriber and
// source.
func AbsentSources(ctx context.Context, q store.Querier, slot string, sources []string) (map[string]map[string]int64, error) {
	rows, err := q.Query(ctx, `
		SELECT subscriber, source, count(*) FROM walpost.owed
		WHERE slot = $1 AND state = 'waiting' AND NOT (copied OR source = ANY ($2::text[])) GROUP BY 1, 2`, slot, sources)
	if err != nil {
		return nil, fmt.Errorf("count what waits for sources that are not configured: %w", err)
	}
	absent := make(map[string]map[string]int64)
	var subscriber, source string
	var number int64
	if _, err := pgx.ForEachRow(rows, []any{&subscriber, &source, &number}, func() error {
		if absent[subscriber] == nil {
			absent[subscriber] = make(map[string]int64)
		}
		absent[subscriber][source] = number
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count what waits for sources that are not configured: %w", err)
	}
	return absent, nil
}

// reason is what is kept of an error.
func reason(s string) string {
	s = store.Storable(s)
	if len(s) > maxError {
		s = strings.ToValidUTF8(s[:maxError], "")
	}
	return s
}

// body passes the text of a payload or of headers through; nil is NULL.
func body(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// known turns the zero time into NULL.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// or turns NULL into the zero time, and all others into UTC.
func or(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// sources are the tables that events can be read from. What is owed by reference to a row of another one waits until its
// source is back in the configuration, or a person discards it: to the lane it is not there, so that it keeps nothing
// else back. Its row may well be there, and to call it gone would be the loss of the event.
func (s *Store) sources() []string {
	return slices.AppendSeq([]string{}, maps.Keys(s.current())) // not nil, which is NULL, and no answer to any question
}
