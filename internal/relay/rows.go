package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// recording says which rows of the tables become a debt of whom.
type recording struct {
	// snapshot is the one that was exported with a new slot; "" is one of this moment.
	snapshot string
	// from is where in the WAL begins what the snapshot may not show: nothing that committed below it is missing.
	from event.LSN
	// retained takes all rows that the tables have, published or not.
	retained bool
	// repair takes all rows of a source that is not marked: nobody knows which of them wait.
	repair bool
	// some tells that others want the rows as well: then what none of these recipients wants is not marked.
	some bool
	to   []recipient
}

// recipient is a subscriber that rows become a debt of, in the configuration or not any more.
type recipient struct {
	name  string
	wants func(source, eventType string) bool
}

// recipients are the subscribers that are meant, of those in the configuration and those that have left it and have
// not had everything that committed before. A row has no place in the WAL, so that those whose filter has changed
// want what any of their filters takes.
func (r *Relay) recipients(s *session, meant func(name string, fromBeginning bool) bool) []recipient {
	var to []recipient
	inConfig := make(map[string]bool)
	for _, sub := range r.Subscriptions {
		name := sub.Subscriber.Name()
		inConfig[name] = true
		if !meant(name, sub.FromBeginning) {
			continue
		}
		k := s.known[name]
		wanted := k.wants.beyond(k.position(s.epoch)).changed(sub.filter(), place{s.epoch, s.end})
		to = append(to, recipient{name, func(source, eventType string) bool {
			return wanted.ever(source, eventType) && sub.understands(eventType)
		}})
	}
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		k := s.known[name]
		if left := k.wants.beyond(k.position(s.epoch)); !inConfig[name] && len(left) > 0 && meant(name, false) {
			to = append(to, recipient{name, left.ever})
		}
	}
	return to
}

// recordRows makes rows of the tables a debt of the subscribers that want them and are meant. They are read
// in a transaction of their own, because they are written while they are read. It returns how many there
// were.
//
// They have positions that no commit has, because those are 8-aligned: just below from, and so before all
// that is not among them. A commit that is being flushed, or waits for a standby, has its place in the WAL
// already and is in no snapshot, so the end of the WAL would be too high.
//
// Of those from there on the stream brings some as well. They are known by their ids: a lane pays nothing
// before it has looked up all that was written before the stream began.
func (r *Relay) recordRows(ctx context.Context, tx pgx.Tx, s *session, o recording) (int64, error) {
	// It writes only now and then, while the other transaction reads. And the next leader waits for its end, which
	// must not be that of the server's keepalives, two hours, when the network is cut: see postgres.ReplicationConfig.
	_, err := tx.Exec(ctx, `SELECT pg_catalog.set_config(name, value, true) FROM (VALUES ('idle_in_transaction_session_timeout', '0'),
		('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3')) s (name, value)`)
	if err != nil {
		return 0, err
	}
	var rows int64
	attempt := func(rowByRow bool) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) (err error) {
			rows, err = r.recordRowsOnce(ctx, savepoint, s, o, rowByRow)
			return err
		})
	}
	if err = attempt(false); outbox.Unreadable(err) {
		r.Log.Warn("the server cannot send a value of a row; rows are read one by one, and what cannot be read becomes a dead letter", "err", err)
		err = attempt(true)
	}
	return rows, err
}

func (r *Relay) recordRowsOnce(ctx context.Context, tx pgx.Tx, s *session, o recording, rowByRow bool) (int64, error) {
	begun := time.Now()
	position := event.Position{Epoch: s.epoch, Commit: o.from - 1}
	debts := newWaitingRows(r, tx, o)
	err := postgres.InSnapshot(ctx, r.Pool, o.snapshot, func(reading pgx.Tx) error {
		for _, table := range s.tables {
			if rowByRow {
				table = table.RowByRow()
			}
			read := table.Unpublished
			switch {
			case o.retained, o.repair && !table.Marks() && table.Source.RepairAll:
				read = table.Retained
			case table.Published == "":
				r.Log.Warn("the table has no published column, so nobody knows which of its rows wait; none is sent", "source", table.Source.Name)
				continue
			}
			debts.table = table
			err := read(ctx, reading, func(ev *event.Event) error {
				ev.Source, ev.Position = table.Source.Name, position
				if ev.CommittedAt.IsZero() {
					ev.CommittedAt = begun
				}
				position.Ordinal++
				ev.Limit(r.MaxEvent)
				return debts.add(ctx, ev)
			})
			if err != nil {
				return err
			}
			if err := debts.flush(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return position.Ordinal, err
}

// waitingRows collects events for each subscriber that wants them and records them in batches.
type waitingRows struct {
	relay *Relay
	tx    pgx.Tx
	to    []recipient
	some  bool          // others want the rows as well
	owed  [][]lane.Owed // by recipient
	bytes int

	table *outbox.Table   // that is read
	mark  []outbox.Marked // rows of it that nobody wants
}

func newWaitingRows(r *Relay, tx pgx.Tx, o recording) *waitingRows {
	return &waitingRows{relay: r, tx: tx, to: o.to, some: o.some, owed: make([][]lane.Owed, len(o.to))}
}

// add takes an event. The row of one that nobody wants is marked: no delivery would ever do that.
func (w *waitingRows) add(ctx context.Context, ev *event.Event) error {
	wanted := false
	for i, to := range w.to {
		if !to.wants(ev.Source, ev.Type) {
			continue
		}
		wanted = true
		if ev.Invalid == "" || ev.Payload != nil {
			w.owed[i] = append(w.owed[i], lane.Owed{Event: ev})
			continue
		}
		// There is no body that could wait: whoever tries to read the row meets the same.
		now := time.Now()
		letter := lane.Owed{Event: ev, Err: ev.Invalid, FirstFailure: now, LastFailure: now}
		if err := w.relay.owed.RecordDead(ctx, w.tx, to.name, letter); err != nil {
			return err
		}
	}
	if !wanted && !w.some && w.table.Marks() && ev.Row != "" {
		w.mark = append(w.mark, outbox.Marked{Row: ev.Row, Identity: ev.Identity(), Owed: true}) // unless an earlier subscriber is owed it
	}
	if w.bytes += ev.Size() + 100; w.bytes < 4<<20 {
		return nil
	}
	return w.flush(ctx)
}

func (w *waitingRows) flush(ctx context.Context) error {
	for i, owed := range w.owed {
		if err := w.relay.owed.RecordWaiting(ctx, w.tx, w.to[i].name, owed); err != nil {
			return err
		}
		w.owed[i] = owed[:0]
	}
	if len(w.mark) > 0 {
		if _, err := w.table.Mark(ctx, w.tx, w.relay.Slot, w.mark); err != nil {
			return err
		}
		w.mark = w.mark[:0]
	}
	w.bytes = 0
	return nil
}
