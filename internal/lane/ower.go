package lane

import (
	"context"
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// Ower records durably what leaves the stream's hands: deliveries that wait to be sent again, and dead
// letters. It is fulfilled by debt.Store. A nil error means committed and flushed.
//
// Of one subscriber, only Dead is called by several goroutines at once; a dead letter and a call of
// another method never concern the same delivery at the same time.
type Ower interface {
	// Load tells what is owed to a subscriber at the start. secured is the position up to which the
	// stream need not look anything up. Of a debt with more than limit.Rows deliveries, or of more than limit.Keys
	// keys, it tells only that there is more.
	Load(ctx context.Context, subscriber string, secured event.Position, limit Limit) (Debt, error)
	// Count counts, by key, the first limit.Rows of the waiting deliveries behind a position, and at most limit.Keys
	// keys and one.
	Count(ctx context.Context, subscriber string, after event.Position, limit Limit) (Counted, error)
	// Record makes deliveries waiting, all or none. One that is recorded already, in whatever state, stays as it
	// is. But where it stands at a made-up position, because its row was read from its table, it takes the real one.
	// others are the indexes of those of which another row with the same identity is recorded: they are not.
	Record(ctx context.Context, subscriber string, owed []Owed) (others []int, err error)
	// Dead records a dead letter, or makes one of a waiting delivery. other tells that another row with the same identity
	// is recorded: then nothing has changed.
	Dead(ctx context.Context, subscriber string, letter Owed) (other bool, err error)
	// Waiting reads waiting deliveries in the order of their positions. It returns at least one if there
	// is any that the query asks for, among those that it examines. An event whose row is gone comes back as an
	// invalid one that says so.
	Waiting(ctx context.Context, subscriber string, query Query) (WaitingPage, error)
	// Sample returns the first waiting delivery of a key, picked at random among the keys that are due in
	// the front of the debt; pick is at least 0 and below 1. Without an ordering by key each delivery is a
	// key of its own. There is none when nothing is due.
	Sample(ctx context.Context, subscriber string, order Ordering, pick float64) ([]Owed, error)
	// Known returns what is recorded of those of the events that are recorded, by index.
	Known(ctx context.Context, subscriber string, events []*event.Event) (map[int]Recorded, error)
	// FindMarked returns, in order, the indexes of those of the events whose rows are marked as published: every
	// subscriber has had them.
	FindMarked(ctx context.Context, events []*event.Event) ([]int, error)
	// Paid removes deliveries that were delivered, and what else was paid up to secured. A delivery
	// beyond secured stays as paid until secured reaches it, because after a crash the stream brings it
	// again; so does one whose outbox row is still to be marked.
	Paid(ctx context.Context, subscriber string, paid []Paid, secured event.Position) error
	// Failed notes failed attempts of waiting deliveries.
	Failed(ctx context.Context, subscriber string, owed []Owed) error
	// Blocked returns the keys that have a dead letter, or of more than limit of them limit and one.
	Blocked(ctx context.Context, subscriber string, limit int) ([]string, error)
	// Unwanted pauses the subscriber on its own word, until a person resumes it.
	Unwanted(ctx context.Context, subscriber, why string) error
	// Changes tells what people have changed, and how far the debt reaches back.
	Changes(ctx context.Context, subscriber string) (Changes, error)
}

// State is the state of an owed delivery.
type State string

// The states of walpost.owed.
const (
	StateWaiting State = "waiting" // sent by itself
	StateDead    State = "dead"    // waits for a person
	StatePaid    State = "paid"    // was sent; known until the stream is past it
)

// Recorded is what the debt says of a delivery.
type Recorded struct {
	State State
	// MadeUp tells that its position is not that of its commit, because its row was read from its table.
	MadeUp bool
	// Other tells that it is of another row with the same identity.
	Other bool
}

// Owed is a delivery that is recorded, or about to be.
type Owed struct {
	Event                     *event.Event
	Attempts                  int // failed ones
	FirstFailure, LastFailure time.Time
	NextAttempt               time.Time // zero for at once
	Err                       string    // of the last attempt
	// InTableOrder says of a made-up position that it is in order among those of its table's other rows: some of them
	// are not in the stream, so it stays when the event's own position is known.
	InTableOrder bool
}

// Paid is an owed delivery that was delivered.
type Paid struct {
	Event    *event.Event
	Attempts int // failed ones, to be added to the row's when it is marked
}

// Query says what Waiting reads.
type Query struct {
	After   event.Position // exclusive
	Without []string       // keys to leave out
	Limit   int            // rows to return
	Examine int            // rows to look at, also of those that are left out; 0 for no bound
	Bytes   int64          // stop after so much event data
	// WithoutBlocked leaves out the keys that have a dead letter, whatever their number.
	WithoutBlocked bool

	// Order says what failed deliveries keep others from being read. ByKey: those of their key. A failed one
	// behind After keeps back its key, because the caller has set that aside, unless it is among InHand; one
	// that is due after Due keeps back itself and what follows. None: one that is due after Due is left out.
	Order  Ordering
	InHand []string
	Due    time.Time // zero: everything is due
	// Change is Changes.Change as the caller knows it. With ByKey, ErrChanged says that people have changed
	// something since: what kept a key back may be gone.
	Change int64
}

// WaitingPage is what Waiting has read.
type WaitingPage struct {
	Owed []Owed
	// Reached is up to where everything was returned or left out; zero where nothing was examined.
	Reached event.Position
	// More tells that something may wait behind Reached.
	More bool
}

// Limit bounds what is read of a debt at once.
type Limit struct {
	Keys int
	Rows int
}

// Counted is what Count found.
type Counted struct {
	Keys map[string]int // waiting deliveries by key
	// Reached is the position of the last one that was counted, and More tells that others follow.
	Reached event.Position
	More    bool
	// Change is Changes.Change of a moment before the deliveries were counted.
	Change int64
}

// ErrChanged is the answer of Waiting when the caller has to ask first for what people have changed.
var ErrChanged = errors.New("what is owed was changed")

// Debt is what Load found.
type Debt struct {
	// Keys counts the waiting deliveries by key; nil with More.
	Keys map[string]int
	// More means that there is more than was asked for.
	More bool
	// Beyond means that something is recorded, in whatever state, beyond the secured position, or of an event that
	// committed beyond it for all that is known.
	Beyond bool
	// Bound is the highest bound of the deliveries at made-up positions, in whatever state, of which the stream may
	// still bring the event: those with a bound beyond the secured position. 0 where there are none. Bounds are
	// those of the waiting ones, the highest of each key; nil with More.
	Bound  event.LSN
	Bounds map[string]event.LSN
	// Paused tells that a person has paused the subscriber.
	Paused bool
	// Change is Changes.Change of a moment before the rest was read.
	Change int64
}

// Changes is what a lane asks for from time to time.
type Changes struct {
	// Paused tells that a person has paused the subscriber.
	Paused bool
	// Change is another number after a person has changed something.
	Change int64
	// Oldest is the position of the oldest waiting delivery; Any is false when there is none.
	Oldest event.Position
	Any    bool
	// Holds is the position of the oldest one that is not below the slot's confirmed position: the server would still
	// send it again. nil when there is none.
	Holds *event.Position
	// OldestAt is when that event committed.
	OldestAt time.Time
}
