package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
)

// uncleanLimit is after how many unclean ends in a row, without anything confirmed in between, the relay
// starts carefully.
const uncleanLimit = 3

// suspect is a delivery that was in hand when the process ended.
type suspect struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	EventID    string `json:"event_id"`
	Occurrence string `json:"occurrence"`
	// Times is how many processes ended with it in hand, as far as is known.
	Times int `json:"times"`
}

// suspectLimit is how often a process must have ended with the same event in hand for that to be its
// doing, and no chance.
const suspectLimit = 2

func (s *suspect) is(subscriber string, ev *event.Event) bool {
	return s != nil && s.Times >= suspectLimit && s.same(subscriber, ev)
}

func (s *suspect) same(subscriber string, ev *event.Event) bool {
	return s != nil && s.Subscriber == subscriber && event.Identity{Source: s.Source, ID: s.EventID, Occurrence: s.Occurrence} == ev.Identity()
}

// countStart notes that a process begins to use the slot. A clean stop, and every position that is
// confirmed, takes the count back.
func (r *Relay) countStart(ctx context.Context) (unclean int, found *suspect, err error) {
	var text []byte
	err = postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			UPDATE walpost.slots SET unclean_starts = unclean_starts + 1 WHERE slot = $1
			RETURNING unclean_starts - 1, suspect`, r.Slot).Scan(&unclean, &text)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil, nil
	case err != nil:
		return 0, nil, fmt.Errorf("count the start: %w", err)
	case text == nil || unclean < uncleanLimit:
		return unclean, nil, nil
	}
	found = new(suspect)
	if err := json.Unmarshal(text, found); err != nil {
		return unclean, nil, fmt.Errorf("read the event that was in hand: %w", err)
	}
	return unclean, found, nil
}

// errCareIsOver ends a careful life. It is no trouble: the rooms are built anew without the care.
var errCareIsOver = &changed{reason: "everything that was in the WAL at the start is finished or owed"}

// endCare ends the care when nothing of what earlier processes can have had in hand is open any more: the
// event that ended them is among that. The process may have been ended by something else, too, and one event
// at a time is slow.
func (r *Relay) endCare(ctx context.Context, s *session, p *parts, stop context.CancelCauseFunc) {
	for ctx.Err() == nil {
		over := r.wal.Received() >= s.horizon
		for i := range r.Subscriptions {
			_, oldest := p.tracker.OpenOf(i)
			over = over && (oldest == nil || oldest.Position.Commit >= s.horizon)
		}
		if over {
			stop(errCareIsOver)
			return
		}
		pause(ctx, time.Second)
	}
}

// guard lets one event at a time through and writes down which one, so that the event that ends the
// process is known afterwards.
type guard struct {
	pool  *postgres.Pool
	slot  string
	found *suspect      // at the start
	free  chan struct{} // has a token while no event is in hand
}

func newGuard(pool *postgres.Pool, slot string, found *suspect) *guard {
	g := &guard{pool: pool, slot: slot, found: found, free: make(chan struct{}, 1)}
	g.free <- struct{}{}
	return g
}

// write notes what is in hand; nil is nothing.
func (g *guard) write(ctx context.Context, s *suspect) error {
	text, err := json.Marshal(s)
	if err == nil {
		_, err = g.pool.Exec(ctx, `UPDATE walpost.slots SET suspect = nullif($2::jsonb, 'null') WHERE slot = $1`, g.slot, string(text))
	}
	if err != nil {
		return fmt.Errorf("write down the event in hand: %w", err)
	}
	return nil
}

// carefully makes a subscriber go through the guard. It takes no batches then.
type carefully struct {
	subscriber.Subscriber
	guard *guard
}

// Handle writes the event down, hands it over, and writes down that it came back.
func (c carefully) Handle(ctx context.Context, d subscriber.Delivery) error {
	select {
	case <-c.guard.free:
	case <-ctx.Done():
		return fmt.Errorf("wait for the event in hand: %w", context.Cause(ctx))
	}
	defer func() { c.guard.free <- struct{}{} }()
	inHand := &suspect{Subscriber: c.Name(), Source: d.Source, EventID: d.ID, Occurrence: d.Occurrence, Times: 1}
	if c.guard.found.same(c.Name(), d.Event) {
		inHand.Times = c.guard.found.Times + 1
	}
	if err := c.guard.write(ctx, inHand); err != nil {
		return err
	}
	err := c.Subscriber.Handle(ctx, d)
	clear, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementLimit)
	defer cancel()
	return errors.Join(err, c.guard.write(clear, nil))
}

// endClean notes that the process ended as it was told to.
func (r *Relay) endClean(ctx context.Context) {
	_, err := r.Pool.Exec(ctx, `UPDATE walpost.slots SET unclean_starts = 0, suspect = NULL WHERE slot = $1`, r.Slot)
	if err != nil {
		r.Log.Warn("cannot note that this was a clean stop", "err", err)
	}
}
