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
	"github.com/backendstart/walpost/internal/store"
)

// recording says which rows of the tables become a debt of which subscribers.
type recording struct {
	// snapshot is the one that was exported with a new slot; "" is one of this moment.
	snapshot string
	// at is the position of the first row.
	at     event.Position
	tables []*outbox.Table
	// retained takes all rows that the tables have, published or not.
	retained bool
	// repair takes all rows of a source that is not marked: no one knows which of them wait.
	repair bool
	// some tells that others want the rows as well: then nothing says of a row that no subscriber wants it.
	some bool
	to   []recipient
}

// recipient is a subscriber that rows become a debt of, in the configuration or not any more.
type recipient struct {
	name  string
	wants func(source, eventType string) bool
	// secured is up to where it has, or is owed, everything: an event whose commit is known and not beyond it is not
	// owed to it again. The zero Position says nothing.
	secured event.Position
}

// rowDebts makes rows of the tables a debt.
type rowDebts struct{ *base }

// recipients are the subscribers that are meant, of those in the configuration and those that have left it and have
// not had everything that committed before. A row has no place in the WAL, so that those whose filter has changed
// want what any of their filters takes.
func (d *rowDebts) recipients(s *session, meant func(name string, fromBeginning bool) bool) []recipient {
	var to []recipient
	inConfig := make(map[string]bool)
	for _, sub := range d.Subscriptions {
		name := sub.Subscriber.Name()
		inConfig[name] = true
		if !meant(name, sub.FromBeginning) {
			continue
		}
		k := s.known[name]
		wanted := k.wants.beyond(k.position(s.epoch)).changed(sub.filter(), place{s.epoch, s.end})
		to = append(to, recipient{name, func(source, eventType string) bool {
			return wanted.ever(source, eventType) && sub.understands(eventType)
		}, k.securedIn(s.epoch)})
	}
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		k := s.known[name]
		if left := k.wants.beyond(k.position(s.epoch)); !inConfig[name] && len(left) > 0 && meant(name, false) {
			to = append(to, recipient{name, left.ever, k.securedIn(s.epoch)})
		}
	}
	return to
}

// record makes rows of the tables a debt of the subscribers that want them and are meant. They are read
// in a transaction of their own, because they are written while they are read. It returns how many there
// were, and the next free position.
//
// Their positions are none of a commit. A row says nothing of its commit but that it is before the end of the WAL at that
// moment: that is its bound.
//
// What waited already moves to its place among them, whether it would be recorded now or not: a row that was delivered
// and not marked is owed again, perhaps, and comes before the later ones of its key that waited. A filter that has
// changed since, or a recorded position that is past it, makes no difference to what is owed.
//
// The stream brings some of them as well. They are known by their ids: a lane pays nothing
// before it has looked up all that was written before the stream began.
func (d *rowDebts) record(ctx context.Context, tx pgx.Tx, s *session, o recording) (rows int64, next event.Position, err error) {
	// It writes only now and then, while the other transaction reads. And the next leader waits for its end.
	if err := postgres.LetIdle(ctx, tx); err != nil {
		return 0, o.at, err
	}
	attempt := func(rowByRow bool) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) (err error) {
			rows, next, err = d.recordOnce(ctx, savepoint, s, o, rowByRow)
			return err
		})
	}
	err = attempt(false)
	if outbox.Unreadable(err) {
		d.Log.Warn("the server cannot send a value of a row; rows are read one by one, and what cannot be read becomes a dead letter", "err", err)
		err = attempt(true)
	}
	return rows, next, err
}

func (d *rowDebts) recordOnce(ctx context.Context, tx pgx.Tx, s *session, o recording, rowByRow bool) (rows int64, next event.Position, err error) {
	begun := time.Now()
	position := o.at
	bound := position.Commit // nothing in the snapshot of a new slot committed where it begins, or later
	debts := newWaitingRows(d.owed, tx, s.epoch, o)
	err = postgres.InSnapshot(ctx, d.Pool, o.snapshot, func(reading pgx.Tx) error {
		if o.snapshot == "" {
			var err error
			if bound, err = store.WALEnd(ctx, reading); err != nil { // the first statement takes the snapshot
				return err
			}
		}
		for _, table := range o.tables {
			if rowByRow {
				table = table.RowByRow()
			}
			read := table.Unpublished
			switch {
			case o.retained, o.repair && !table.Marks() && table.Source.RepairAll:
				read = table.Retained
			case table.Published == "":
				d.Log.Warn("the table has no published column, so no one knows which of its rows wait; none is sent", "source", table.Source.Name)
				continue
			}
			debts.table = table
			err := read(ctx, reading, func(ev *event.Event) error {
				ev.Source, ev.Position, ev.Bound = table.Source.Name, position, bound
				if ev.CommittedAt.IsZero() {
					ev.CommittedAt = begun
				}
				position.Ordinal++
				ev.Limit(d.MaxEvent)
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
	rows = position.Ordinal - o.at.Ordinal
	for _, to := range debts.shares {
		if err == nil && to.others > 0 {
			d.Log.Warn("rows have the id and time of another one that is owed; they count as that event, are not sent and stay unpublished: make the ids unique",
				"subscriber", to.name, "rows", to.others)
		}
	}
	if err == nil && !o.retained {
		position, err = d.placeMarked(ctx, tx, o, position, bound)
	}
	return rows, position, err
}

// placeMarked brings what waits for a subscriber into one order again where some of it is marked: a pass over the rows that
// are not published does not meet those, and leaves them before all others. It returns the next free position.
func (d *rowDebts) placeMarked(ctx context.Context, tx pgx.Tx, o recording, position event.Position, bound event.LSN) (event.Position, error) {
	for _, to := range o.to {
		moved, err := d.owed.PlaceMarked(ctx, tx, to.name, o.tables, o.at, position, bound)
		if err != nil {
			return position, err
		}
		if moved > 0 {
			d.Log.Info("rows that wait for the subscriber are marked; all that it is owed of their tables takes the order of the tables", "subscriber", to.name, "deliveries", moved)
		}
		position.Ordinal += moved
	}
	return position, nil
}

// rowsDebt is where rows become a debt; fulfilled by debt.Store.
type rowsDebt interface {
	Commits(ctx context.Context, tx pgx.Tx, epoch int32, events []*event.Event) (map[int]event.Position, error)
	RecordRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) (others int, err error)
	PlaceRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error
	RecordDead(ctx context.Context, tx pgx.Tx, subscriber string, letter lane.Owed) (other bool, err error)
	MarkLater(ctx context.Context, tx pgx.Tx, events []lane.Owed) error
}

// waitingRows collects events for each subscriber that wants them and records them in batches.
type waitingRows struct {
	recording
	debt  rowsDebt
	tx    pgx.Tx
	epoch int32
	table *outbox.Table // that is read

	events []*event.Event
	bytes  int
	shares []share
}

// share is what a recipient gets of the events.
type share struct {
	recipient
	// owed becomes waiting, moved waits already or is not owed. The lists are used again.
	owed, moved []lane.Owed
	others      int // rows of which another one with the same identity is owed
}

func newWaitingRows(debt rowsDebt, tx pgx.Tx, epoch int32, o recording) *waitingRows {
	w := &waitingRows{recording: o, debt: debt, tx: tx, epoch: epoch}
	for _, to := range o.to {
		w.shares = append(w.shares, share{recipient: to})
	}
	return w
}

func (w *waitingRows) add(ctx context.Context, ev *event.Event) error {
	w.events = append(w.events, ev)
	if w.bytes += ev.Size() + 100; w.bytes < 4<<20 {
		return nil
	}
	return w.flush(ctx)
}

// flush records what was collected. It marks nothing: a pass over the table knows nothing of those that are not
// meant, nor of what the stream still brings. A row that no subscriber at all wants is left to the recorder.
func (w *waitingRows) flush(ctx context.Context) error {
	committed, err := w.debt.Commits(ctx, w.tx, w.epoch, w.events)
	if err != nil {
		return err
	}
	var unwanted []lane.Owed
	for n, ev := range w.events {
		wanted := false
		for i := range w.shares {
			to := &w.shares[i]
			at, known := committed[n]
			wants := to.wants(ev.Source, ev.Type)
			wanted = wanted || wants
			switch {
			case !wants, known && at.Compare(to.secured) <= 0:
				to.moved = append(to.moved, lane.Owed{Event: ev, InTableOrder: true})
			case ev.Invalid == "" || ev.Payload != nil:
				to.owed = append(to.owed, lane.Owed{Event: ev, InTableOrder: true})
			default:
				// There is no body that could wait: each attempt to read the row meets the same.
				now := time.Now()
				letter := lane.Owed{Event: ev, InTableOrder: true, Err: ev.Invalid, FirstFailure: now, LastFailure: now}
				other, err := w.debt.RecordDead(ctx, w.tx, to.name, letter)
				if err != nil {
					return err
				}
				if other {
					to.others++
				}
			}
		}
		if !wanted && !w.some && !w.retained && ev.Row != "" && w.table.Marks() {
			unwanted = append(unwanted, lane.Owed{Event: ev})
		}
	}
	for i := range w.shares {
		to := &w.shares[i]
		others, err := w.debt.RecordRows(ctx, w.tx, to.name, to.owed)
		if err != nil {
			return err
		}
		to.others += others
		if err := w.debt.PlaceRows(ctx, w.tx, to.name, to.moved); err != nil {
			return err
		}
		to.owed, to.moved = to.owed[:0], to.moved[:0]
	}
	w.events, w.bytes = w.events[:0], 0
	return w.debt.MarkLater(ctx, w.tx, unwanted)
}
