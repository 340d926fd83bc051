package relay

import (
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

const (
	// remembered is how many attempts a relay remembers.
	remembered = 10_000
	// maxText and maxKey are how many bytes are kept of an error and of a key: so the memory of all attempts
	// stays below 20 MB.
	maxText, maxKey = 500, 256
	// scanned is how many attempts are looked at before the lanes may go on.
	scanned = 256
)

// Attempt is how one event fared in a call of a subscriber. Times are UTC.
type Attempt struct {
	// Seq grows with every attempt, also over restarts: it begins with the microseconds since 1970 at
	// which the process started.
	Seq         uint64    `json:"seq"`
	At          time.Time `json:"at"` // when it ended
	Subscriber  string    `json:"subscriber"`
	Source      string    `json:"source"`
	Event       string    `json:"event"`
	Occurrence  string    `json:"occurrence"` // see event.Identity
	Type        string    `json:"type"`
	Key         string    `json:"key"` // cut after 256 bytes
	Position    string    `json:"position"`
	CommittedAt time.Time `json:"committed_at,omitzero"` // zero where the server did not know it
	// Number counts the attempts of this delivery from 1; 0 is an event that was never handed over,
	// because it can be delivered to no one.
	Number  int          `json:"attempt"`
	Outcome lane.Outcome `json:"outcome"`
	// Batch is how many events the call had, Seconds how long it took.
	Batch   int     `json:"batch"`
	Seconds float64 `json:"seconds"`
	Replay  bool    `json:"replay,omitempty"` // a person asked for it again
	Error   string  `json:"error,omitempty"`
}

// call is what the attempts of one call of a subscriber have in common.
type call struct {
	at         time.Time
	subscriber string
	batch      int
	seconds    float64
}

// kept is an attempt as it is remembered: small, because every delivery writes one.
type kept struct {
	call     *call
	source   string
	position event.Position
	commit   int64 // microseconds since 1970
	outcome  lane.Outcome
	err      string
	number   int32
	replay   bool
	// names are event, type, occurrence and key, one behind the other, in memory that is used again for the next attempt
	// in this place. The event's own strings may be part of a text of megabytes, which would stay with them.
	names                  []byte
	event, typed, occurred int32 // where the event's name, the type and the occurrence end
}

func (k *kept) remember(of *call, tried *lane.Attempt) {
	ev := tried.Event
	k.call, k.source, k.position, k.commit = of, ev.Source, ev.Position, microseconds(ev.CommittedAt)
	k.outcome, k.number, k.replay, k.err = tried.Outcome, int32(tried.Number), tried.Replay, ""
	if tried.Err != nil {
		k.err = cut(tried.Err.Error(), maxText)
	}
	k.names = append(k.names[:0], ev.ID...)
	k.event = int32(len(k.names))
	k.names = append(k.names, ev.Type...)
	k.typed = int32(len(k.names))
	k.names = append(k.names, ev.Occurrence...)
	k.occurred = int32(len(k.names))
	k.names = append(k.names, cut(ev.Key, maxKey)...)
}

// read is the attempt as people see it.
func (k *kept) read(seq uint64) Attempt {
	return Attempt{
		Seq: seq, At: k.call.at, Subscriber: k.call.subscriber, Source: k.source,
		Event: string(k.names[:k.event]), Type: string(k.names[k.event:k.typed]),
		Occurrence: string(k.names[k.typed:k.occurred]), Key: string(k.names[k.occurred:]),
		Position: k.position.String(), CommittedAt: fromMicroseconds(k.commit),
		Number: int(k.number), Outcome: k.outcome, Batch: k.call.batch, Seconds: k.call.seconds, Replay: k.replay, Error: k.err,
	}
}

// microseconds are since 1970, as exact as Postgres is, and 0 for the zero time.
func microseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicroseconds(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// AttemptFilter chooses attempts. An empty field chooses all.
type AttemptFilter struct {
	Event, Subscriber, Type, Key string
	Outcome                      lane.Outcome
}

func (f AttemptFilter) fits(k *kept) bool {
	return (f.Event == "" || f.Event == string(k.names[:k.event])) && (f.Subscriber == "" || f.Subscriber == k.call.subscriber) &&
		(f.Type == "" || f.Type == string(k.names[k.event:k.typed])) && (f.Key == "" || cut(f.Key, maxKey) == string(k.names[k.occurred:])) &&
		(f.Outcome == "" || f.Outcome == k.outcome)
}

// Attempts remembers the last 10,000 attempts of a relay. It is safe for concurrent use. Readers never
// make a lane wait for longer than it takes to look at 256 attempts: who reads too slowly misses some, and
// is told how many.
type Attempts struct {
	mu   sync.Mutex
	ring []kept // the attempt number n stands at n % len; guarded by mu
	// The call of number n stands at n % len, too. As every call has at least one attempt, the ring of
	// attempts forgets a call's last one before this ring does the call.
	calls   []call        // guarded by mu
	called  uint64        // number of the next call; guarded by mu
	first   uint64        // Seq of the first ever; guarded by mu
	next    uint64        // Seq of the next one; guarded by mu
	changed chan struct{} // closed at the next attempt, nil while no one waits; guarded by mu
}

// NewAttempts remembers up to size attempts. Their numbers begin at a moment: now, except in tests.
func NewAttempts(size int, begin time.Time) *Attempts {
	first := uint64(begin.UnixMicro())
	return &Attempts{ring: make([]kept, size), calls: make([]call, size), first: first, next: first}
}

// Record remembers how a call of a subscriber ended that began at a time and took so long. It keeps
// nothing of attempts, and of the events only a copy of their names.
func (a *Attempts) Record(subscriber string, began time.Time, took time.Duration, attempts []lane.Attempt) {
	if len(attempts) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := &a.calls[a.called%uint64(len(a.calls))]
	*of = call{at: began.Add(took).UTC(), subscriber: subscriber, batch: len(attempts), seconds: took.Seconds()}
	a.called++
	for i := range attempts {
		a.ring[a.next%uint64(len(a.ring))].remember(of, &attempts[i])
		a.next++
	}
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// cut shortens a text, and lets go of the long one.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:n]), "")
}

// Page is a part of what is remembered.
type Page struct {
	// Attempts are those that the filter chose, oldest first.
	Attempts []Attempt
	// Next is where to go on reading.
	Next uint64
	// Missed is how many attempts, chosen or not, were forgotten before they could be looked at.
	Missed uint64
	// Changed is closed when there is more to read; nil if there is more already.
	Changed <-chan struct{}
}

// Read looks at some of the attempts whose Seq is at least from. A number that this relay has not given,
// like 0, stands for the oldest that is remembered.
func (a *Attempts) Read(from uint64, filter AttemptFilter) Page {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := max(a.first, a.next-min(a.next, uint64(len(a.ring))))
	var page Page
	switch {
	case from < a.first || from > a.next:
		from = oldest
	case from < oldest:
		page.Missed, from = oldest-from, oldest
	}
	page.Next = min(a.next, from+scanned)
	for ; from < page.Next; from++ {
		if place := &a.ring[from%uint64(len(a.ring))]; filter.fits(place) {
			page.Attempts = append(page.Attempts, place.read(from))
		}
	}
	if page.Next == a.next {
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		page.Changed = a.changed
	}
	return page
}

// Last returns the last n attempts that the filter chooses, oldest first, since when attempts are
// remembered (zero: there was none yet), and from where to Read what comes after them.
func (a *Attempts) Last(n int, filter AttemptFilter) (last []Attempt, since time.Time, next uint64) {
	a.mu.Lock()
	end := a.next
	oldest := max(a.first, end-min(end, uint64(len(a.ring))))
	if oldest < end {
		since = a.ring[oldest%uint64(len(a.ring))].call.at
	}
	a.mu.Unlock()
	for next = oldest; next < end; {
		page := a.Read(next, filter)
		last = append(last, page.Attempts...)
		last = last[max(0, len(last)-n):]
		next = page.Next
	}
	return last, since, next
}

// OpenDelivery is an event that the relay has in hand for a subscriber: received from the stream, and neither
// finished nor owed.
type OpenDelivery struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	Occurrence string `json:"occurrence"`
}
