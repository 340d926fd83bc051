package debt

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
)

// Redrive makes dead deliveries wait again, the oldest first: a relay sends them, the one that runs within
// two seconds, else the next. Each keeps its position, so that with block_key it goes before what waits
// behind it; its attempts and its error stay, but its limits (max_attempts, give_up_after) begin again.
//
// What is not dead is not touched: two who redrive the same deliveries at once have them sent once. An
// event that was recorded by reference as an invalid one, such as one over max_event, is read and judged
// again when it is sent; an invalid one that was copied cannot become valid, and stays.
//
// It works in pieces as Discard does. A subscriber that is unknown, or that has left the configuration, is
// an error.
func (s *Store) Redrive(ctx context.Context, filter Filter, who, why string) (Outcome, error) {
	outcome, err := s.redrive(ctx, filter, who, why)
	if err != nil {
		return outcome, fmt.Errorf("redrive dead deliveries, after %d: %w", outcome.Deliveries, err)
	}
	return outcome, nil
}

func (s *Store) redrive(ctx context.Context, filter Filter, who, why string) (Outcome, error) {
	filter, err := s.ofTheDead(ctx, filter)
	if err != nil {
		return Outcome{}, err
	}
	subscribers, err := s.configured(ctx, filter.Subscriber)
	if err != nil {
		return Outcome{}, err
	}
	change := change{action: "redrive", result: Redriven, filter: filter, who: who, why: why}
	outcome, err := s.inPieces(ctx, change, func(tx pgx.Tx, after deliveryKey, n int) (*piece, error) {
		chosen := new(piece)
		for _, name := range subscribers[max(0, slices.Index(subscribers, after.subscriber)):] {
			of := filter
			of.Subscriber = name
			from := event.Position{}
			if name == after.subscriber {
				from = after.position
			}
			if err := s.chooseDead(ctx, tx, chosen, of, from, n-len(chosen.keys)); err != nil || len(chosen.keys) == n {
				return chosen, err
			}
		}
		return chosen, nil
	})
	if err != nil {
		return outcome, err
	}
	left, _, err := s.Redrivable(ctx, filter)
	for _, n := range left {
		outcome.Invalid += n.Invalid
		outcome.Gone += n.Gone
	}
	return outcome, err
}

// ofTheDead narrows a filter down to the dead deliveries of subscribers that exist.
func (s *Store) ofTheDead(ctx context.Context, filter Filter) (Filter, error) {
	if err := filter.Narrow(); err != nil {
		return filter, err
	}
	if filter.State == lane.StateWaiting {
		return filter, Refused("only dead deliveries can be redriven: those that wait are sent by themselves")
	}
	filter.State = lane.StateDead
	if filter.Subscriber == "" {
		return filter, nil
	}
	configured, err := store.IsConfigured(ctx, s.pool, s.slot, filter.Subscriber)
	if err == nil && !configured {
		err = Refused(fmt.Sprintf("subscriber %q has left the configuration, no relay would send to it: put it back and start the relay, or discard what it is owed", filter.Subscriber))
	}
	return filter, err
}

// configured returns the subscribers that are in the configuration: all, or only the one that is named.
func (s *Store) configured(ctx context.Context, name string) ([]string, error) {
	subscribers, err := store.Subscribers(ctx, s.pool, s.slot)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, sub := range subscribers {
		if sub.GoneAt.IsZero() && (name == "" || name == sub.Name) {
			names = append(names, sub.Name)
		}
	}
	return names, nil
}

// chooseDead locks dead deliveries of one subscriber in the order in which they are sent: of a key with
// several of them, none may be sent before an older one of a later piece. One that has died again meanwhile
// is not met a second time.
func (s *Store) chooseDead(ctx context.Context, tx pgx.Tx, chosen *piece, filter Filter, after event.Position, limit int) error {
	where, args := filter.where(s.slot)
	n := len(args)
	rows, err := tx.Query(ctx, `
		SELECT o.subscriber, o.source, o.event_id, o.occurrence, o.epoch, o.commit_lsn::text, o.ordinal FROM walpost.owed o
		WHERE `+where+` AND NOT (`+neverValid+`)`+fmt.Sprintf(`
		AND (o.epoch, o.commit_lsn, o.ordinal) > ($%d::int, $%d::text::pg_lsn, $%d::bigint)`, n+1, n+2, n+3)+`
		ORDER BY o.epoch, o.commit_lsn, o.ordinal LIMIT `+strconv.Itoa(limit)+` FOR UPDATE`,
		append(args, after.Epoch, after.Commit.String(), after.Ordinal)...)
	if err != nil {
		return err
	}
	var at deliveryKey
	var commit string
	of := &at.event
	_, err = pgx.ForEachRow(rows, []any{&at.subscriber, &of.Source, &of.ID, &of.Occurrence, &at.position.Epoch, &commit, &at.position.Ordinal}, func() (err error) {
		if at.position.Commit, err = event.ParseLSN(commit); err != nil {
			return err
		}
		chosen.keys = append(chosen.keys, at)
		chosen.batch.Queue(becomesWaiting, delivery(s.slot, at.event, at.subscriber)...)
		return nil
	})
	return err
}

// becomesWaiting makes a dead delivery wait. How large an event is that was not kept is not known: it counts
// as so large that it is read alone.
const becomesWaiting = `
	UPDATE walpost.owed SET state = 'waiting', next_attempt = NULL, first_failure = NULL, invalid = '', lost = false,
	    size = CASE invalid WHEN '' THEN size ELSE 2147483647 END
	WHERE ` + theDelivery

// Redrivable is a number of a subscriber's dead deliveries: those that Redrive makes wait, and those that it
// leaves as they are, because of their event or because the subscriber is in no configuration.
type Redrivable struct {
	Subscriber                string
	Redrivable, Invalid, Gone int64
}

// Redrivable counts what Redrive would do, by subscriber and whatever the filter's limit, and returns the
// server's clock at that moment.
func (s *Store) Redrivable(ctx context.Context, filter Filter) (counts []Redrivable, at time.Time, err error) {
	if filter, err = s.ofTheDead(ctx, filter); err != nil {
		return nil, at, err
	}
	where, args := filter.where(s.slot)
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&at); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT subscriber, count(*) FILTER (WHERE sendable AND NOT neverValid), count(*) FILTER (WHERE neverValid),
			       count(*) FILTER (WHERE NOT sendable AND NOT neverValid)
			FROM (SELECT o.subscriber, `+sendable+` AS sendable, `+neverValid+` AS neverValid FROM walpost.owed o WHERE `+where+`) o
			GROUP BY 1 ORDER BY 1`, args...)
		if err != nil {
			return err
		}
		counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Redrivable])
		return err
	})
	if err != nil {
		return nil, at, fmt.Errorf("count dead deliveries: %w", err)
	}
	return counts, at.UTC(), nil
}
