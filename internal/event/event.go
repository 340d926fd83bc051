// Package event is the vocabulary that all packages share: what an event is, and where in the stream of
// commits it stands. It does no I/O and knows neither Postgres' wire format nor anyone's columns;
// how a row becomes an event is the business of package outbox.
package event

import (
	"encoding/json"
	"fmt"
	"time"
)

// An Event is a fact that was committed to an outbox. The relay hands the same Event to every
// subscriber, so no one changes one after it was made.
type Event struct {
	// Source is the name of the source in the configuration.
	Source string
	// ID is what a receiver dedupes on; at most 256 bytes, unique among the events that its source has at a time.
	ID string
	// Occurrence tells two events apart that had one id at different times; see Identity.
	Occurrence string
	// Type names the fact, "lesson.completed".
	Type string
	// Version, AggregateType, AggregateID, Topic and Revision are "" where the source has no such column.
	Version, AggregateType, AggregateID, Topic, Revision string
	// Key is what order is kept within.
	Key string
	// Payload and Headers are the text exactly as Postgres sent it; nil is SQL NULL.
	Payload, Headers json.RawMessage
	// PayloadType is what the text of Payload stands for.
	PayloadType PayloadType
	// OccurredAt is the text of the source's time column, "" where there is none.
	OccurredAt string

	// Row is the primary key of the outbox row as text, "" for an event that came without a table.
	Row string
	// Position is where the event stands in its source's stream of commits.
	Position Position
	// Bound is 0 where Position is that of the event's commit. Else Position is made up, because the row was
	// read from its table (repair, from: beginning, owed add, replay), and the event committed before Bound.
	Bound LSN
	// CommittedAt is when the transaction committed, by the clock of the server.
	CommittedAt time.Time
	// XID is the transaction that wrote the row; 0 for a row that was read from the table.
	XID uint32
	// Lost tells that its row is gone and no copy was kept, so that no one can send it any more. Invalid says the same in
	// words.
	Lost bool
	// Invalid says why the row is no valid event; "" for a valid one. An invalid event is never
	// handed to a subscriber: it becomes a dead letter with this reason.
	Invalid string
}

// Identity tells whether two events are the same one: the same id comes again after TRUNCATE … RESTART
// IDENTITY, a DELETE or a sequence that was set back, and then it is another event. Occurrence is the text of
// the row's time column as the stream and every pinned session write it; where the source has none or it is
// NULL, a hash of type and payload. A position orders and confirms, and is no identity: a repair, a failover
// and an update that moves a row to another partition change it.
type Identity struct{ Source, ID, Occurrence string }

// Identity returns what the event is known by.
func (e *Event) Identity() Identity { return Identity{e.Source, e.ID, e.Occurrence} }

// String names the event for people.
func (i Identity) String() string {
	return fmt.Sprintf("%q of source %q, occurrence %q", i.ID, i.Source, i.Occurrence)
}

// Size is the number of payload, header and name bytes that the event holds in memory.
func (e *Event) Size() int {
	size := len(e.Payload) + len(e.Headers) + len(e.ID) + len(e.Type) + len(e.Key) +
		len(e.Version) + len(e.AggregateType) + len(e.AggregateID) + len(e.Topic) + len(e.Revision) +
		len(e.OccurredAt) + len(e.Row)
	if e.Occurrence != e.OccurredAt { // else both are one string
		size += len(e.Occurrence)
	}
	return size
}

// Limit makes an event of more than size bytes an invalid one that says so and keeps nothing of its
// payload: it becomes a dead letter that points to its row. Call it before the event is shared.
func (e *Event) Limit(size int) {
	if got := e.Size(); got > size {
		e.Payload, e.Headers = nil, nil
		e.Invalid = fmt.Sprintf("the event has %d bytes, max_event is %d; its payload was not kept and stands in its row", got, size)
	}
}
