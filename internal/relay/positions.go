package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// membership decides who gets something in a session, and from where.
type membership struct {
	*base
	rows *rowDebts
}

// readSubscribers reads what is recorded of all subscribers that the slot has ever had, and says of which it does not
// believe it.
func (m *membership) readSubscribers(ctx context.Context, s *session) error {
	known := make(map[string]stored)
	err := postgres.InTx(ctx, m.Pool, func(tx pgx.Tx) error {
		subscribers, err := store.Subscribers(ctx, tx, m.Slot)
		if err != nil {
			return err
		}
		for _, sub := range subscribers {
			k := stored{secured: sub.Secured, doubt: sub.Doubt}
			if !sub.GoneAt.IsZero() {
				k.goneAt = sub.GoneAt.Format(time.RFC3339)
			}
			if k.wants, err = parseWants([]byte(sub.Wants)); err != nil {
				m.Log.Warn("what a subscriber wanted before cannot be read; it counts as everything", "subscriber", sub.Name, "err", err)
			}
			known[sub.Name] = k
		}
		s.end, err = store.WALEnd(ctx, tx) // after the positions, so that it is beyond all that are true
		return err
	})
	if err != nil {
		return fmt.Errorf("read positions of the subscribers: %w", err)
	}
	s.known = known
	return nil
}

func (m *membership) readEnd(ctx context.Context, s *session) error {
	return postgres.InTx(ctx, m.Pool, func(tx pgx.Tx) (err error) {
		s.end, err = store.WALEnd(ctx, tx)
		return err
	})
}

// restartPositions lets the subscribers whose positions are not believed begin where the slot does, and all of them
// where the server has become another one: their positions say nothing about this one.
func (m *membership) restartPositions(ctx context.Context, tx pgx.Tx, s *session) error {
	names := s.doubted()
	if s.record != nil && s.record.Epoch != s.epoch {
		names = slices.Sorted(maps.Keys(s.known))
	}
	if err := store.RestartPositions(ctx, tx, m.Slot, s.system.ID, s.system.Timeline, s.epoch, names); err != nil {
		return err
	}
	for _, name := range names {
		k := s.known[name]
		k.secured = event.Position{Epoch: s.epoch}
		s.known[name] = k
	}
	return nil
}

// plan decides from where each subscriber goes on and what it gets, for a slot that exists: first those of the
// configuration, in their order, then those that have left and have not had everything that committed before.
func plan(known map[string]stored, configured []configuredSubscriber, epoch int32, end place) []member {
	var members []member
	inConfig := make(map[string]bool)
	for _, sub := range configured {
		inConfig[sub.name] = true
		k, ok := known[sub.name]
		position := k.position(epoch)
		still := k.wants.within(end).beyond(position)
		m := member{name: sub.name, after: position, wants: still.changed(sub.filter, end), subscription: sub.subscription}
		switch {
		case !ok && sub.fromBeginning:
			m.after, m.wants, m.found = event.Position{Epoch: epoch}, from(sub.filter), beginning
		case !ok:
			m.after, m.wants, m.found = end.last(), from(sub.filter), isNew
		case k.goneAt != "" && len(still) == 0:
			m.after, m.wants, m.found = end.last(), from(sub.filter), isBack
		case k.goneAt != "":
			m.found = isBack
		}
		members = append(members, m)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		k := known[name]
		position := k.position(epoch)
		still := k.wants.within(end).beyond(position)
		if !inConfig[name] && len(still) > 0 {
			members = append(members, member{name: name, after: position, wants: still.closed(end), left: true})
		}
	}
	return members
}

// atTheBeginning is the plan for a slot before which there is nothing but debt.
func (m *membership) atTheBeginning(s *session) []member {
	members := make([]member, len(m.Subscriptions))
	for i, sub := range m.configured() {
		members[i] = member{name: sub.name, after: event.Position{Epoch: s.epoch}, wants: from(sub.filter), subscription: sub.subscription}
	}
	return members
}

// startPositions finds from where each subscriber goes on with a slot that exists. One that is new to it,
// or comes back after it had left the configuration, starts at now. One that has left ends at now.
func (m *membership) startPositions(ctx context.Context, s *session) error {
	if err := m.readEnd(ctx, s); err != nil {
		return err
	}
	members := plan(s.known, m.configured(), s.epoch, place{s.epoch, s.end})
	for _, of := range members {
		if of.found == beginning {
			if err := m.recordRetained(ctx, s, of); err != nil {
				return err
			}
		}
	}
	err := m.inTerm(ctx, func(tx pgx.Tx) error {
		return m.savePositions(ctx, tx, s, members)
	})
	if err != nil {
		return err
	}
	s.members = members
	m.logPositions(s)
	return nil
}

// logDepartures names those that have left when the slot was made: all rows that wait are owed to them, too.
func (m *membership) logDepartures(s *session) {
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		isMember := slices.ContainsFunc(s.members, func(of member) bool { return of.name == name })
		if k := s.known[name]; !isMember && len(k.wants) > 0 {
			m.Log.Warn("subscriber has left the configuration; what waited before is owed to it until it is forgotten", "subscriber", name)
		}
	}
}

func (m *membership) logPositions(s *session) {
	for _, of := range s.members {
		k := s.known[of.name]
		switch {
		case of.left && k.goneAt == "":
			m.Log.Warn("subscriber has left the configuration; what committed before and it has not had is recorded as owed to it until it is forgotten",
				"subscriber", of.name, "last_position", of.after, "lsn", s.end)
		case of.left:
			m.Log.Warn("subscriber has left the configuration, and not everything that committed before was recorded yet; that goes on",
				"subscriber", of.name, "gone_since", k.goneAt, "last_position", of.after)
		case of.found == isNew:
			m.Log.Info("subscriber is new to this slot and starts at now", "subscriber", of.name, "lsn", s.end)
		case of.found == isBack:
			m.Log.Warn("subscriber is back in the configuration and starts at now; it has no event of the time between",
				"subscriber", of.name, "gone_since", k.goneAt, "last_position", k.secured, "lsn", s.end)
		case of.found == goesOn && len(of.wants) > 1:
			m.Log.Info("what the subscriber wants has changed; that applies to what commits from now on", "subscriber", of.name, "lsn", s.end)
		}
	}
}

// savePositions writes where each subscriber begins and what it wants. Those that are no members have left, and
// there is nothing more to record of them.
func (m *membership) savePositions(ctx context.Context, tx pgx.Tx, s *session, members []member) error {
	starts := make([]store.SubscriberStart, len(members))
	for i, of := range members {
		starts[i] = store.SubscriberStart{Name: of.name, After: of.after, Wants: of.wants.encode(), Left: of.left}
	}
	return store.SaveStarts(ctx, tx, m.Slot, s.system.ID, s.system.Timeline, starts)
}

// depart records that everything that committed before a subscriber left is delivered or owed: from here on it
// holds nothing.
func (m *membership) depart(ctx context.Context, name string, at event.Position) error {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	return m.inTerm(ctx, func(tx pgx.Tx) error {
		return store.RecordDeparture(ctx, tx, m.Slot, name, at)
	})
}

// recordRetained makes all rows that the tables have a debt of one subscriber that is new to the slot.
// What the stream brings of them once more is looked up until it is past this moment, which moves the
// horizon. (docs/postgres.md §5, B)
func (m *membership) recordRetained(ctx context.Context, s *session, of member) error {
	begun := time.Now()
	name := of.name
	m.Log.Info("subscriber is new to this slot and starts at the beginning", "subscriber", name)
	// A row that is not marked may be behind the slot while its commit still waits for a standby.
	unmarked := slices.DeleteFunc(slices.Clone(s.tables), (*outbox.Table).Marks)
	if err := m.awaitWritersOf(ctx, "the new subscriber", unmarked); err != nil {
		return err
	}
	var rows int64
	err := m.inTerm(ctx, func(tx pgx.Tx) (err error) {
		at := event.Position{Epoch: s.epoch, Commit: s.confirmed - 1} // before all that the stream brings
		rows, _, err = m.rows.record(ctx, tx, s, recording{at: at, tables: s.tables, retained: true, to: []recipient{{name: name, wants: of.subscription.wants}}})
		return err
	})
	if err != nil {
		return fmt.Errorf("record the rows before subscriber %q: %w", name, err)
	}
	m.Log.Info("rows before the subscriber are recorded as owed and sent first", "subscriber", name, "rows", rows, "took", time.Since(begun))
	return nil
}
