// Package replay keeps what people ask to be sent to one subscriber again, in the table walpost.replays:
// what is chosen, how much that is, and how far it is. It sends nothing: that is the business of the leader,
// told in package relay; who asks is package ops. Rows are chosen and read in package outbox.
package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
)

// A Request says which retained rows are to be sent to a subscriber again. An empty field chooses all.
type Request struct {
	Subscriber string `json:"subscriber"`
	// Since and Until, which is exclusive, are compared with the source's time column.
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Key    string    `json:"key,omitempty"`
	Type   string    `json:"type,omitempty"`
	Source string    `json:"source,omitempty"`
	// Again lets effects that are recorded in walpost.inbox happen once more.
	Again bool `json:"again,omitempty"`
	// Rate is how many events a second are sent at most; 0 is no limit.
	Rate int `json:"rate"`
}

// maxRate is more than any relay sends.
const maxRate = 1_000_000

// Check returns what cannot be meant, as a debt.Refused.
func (r Request) Check() error {
	switch {
	case r.Subscriber == "":
		return debt.Refused("replay: name the subscriber")
	case r.Since.IsZero() && r.Until.IsZero() && r.Key == "" && r.Type == "" && r.Source == "":
		return debt.Refused("replay: say what is to be sent again: at least one of since, until, key, type and source")
	case !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until):
		return debt.Refused("replay: until must be after since")
	case r.Rate < 0 || r.Rate > maxRate:
		return debt.Refused(fmt.Sprintf("replay: rate must not be negative, nor above %d; 0 is no limit", maxRate))
	}
	return nil
}

// Choice is what a table chooses rows by.
func (r Request) Choice() outbox.Choice {
	return outbox.Choice{Since: r.Since, Until: r.Until, Key: r.Key, Type: r.Type}
}

// State is how a replay stands.
type State string

// The states of a replay, in their order.
const (
	Waiting   State = "waiting" // the leader has not begun
	Running   State = "running"
	Done      State = "done"
	Cancelled State = "cancelled" // by a person; what was sent until then was sent
)

// A Replay is a request that was made, and how far it is. Times are UTC.
type Replay struct {
	ID    int64 `json:"id"`
	State State `json:"state"`
	Request
	Who string `json:"who"`
	// AskedAt is when it was asked for, by the server's clock: rows that are newer are not sent.
	AskedAt   time.Time `json:"asked_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at"`
	// Estimated is how many rows were chosen when it was asked for.
	Estimated int64 `json:"estimated"`
	Progress
	// Problem says what it waits for.
	Problem string `json:"problem,omitempty"`

	// bounds are the last rows that were there when it was asked for, by source.
	bounds map[string]outbox.Place
}

// Last is the place of the last row of a source that the replay sends, nil if it sends none of it.
func (r *Replay) Last(source string) outbox.Place { return r.bounds[source] }

// Progress is what has become of the rows so far.
type Progress struct {
	Delivered int64 `json:"delivered"`
	Dead      int64 `json:"dead"`     // became dead letters
	Owed      int64 `json:"owed"`     // left out: waiting or dead already, so the debt or a redrive sends them
	Unwanted  int64 `json:"unwanted"` // left out: not for this subscriber
	Invalid   int64 `json:"invalid"`  // left out: no valid events
	// Named are the first of the invalid ones, each with its reason.
	Named []string `json:"named,omitempty"`
	// AtSource and At are the last row that is dealt with.
	AtSource string       `json:"-"`
	At       outbox.Place `json:"-"`
}

// maxNamed is how many invalid rows a replay names.
const maxNamed = 20

// Name counts a row that is no valid event, and names it while there are few.
func (p *Progress) Name(id, reason string) {
	p.Invalid++
	if len(p.Named) < maxNamed {
		p.Named = append(p.Named, id+": "+reason)
	}
}

// Seen is how many rows are dealt with.
func (p *Progress) Seen() int64 { return p.Delivered + p.Dead + p.Owed + p.Unwanted + p.Invalid }

// Open reports whether anything is still to be done.
func (s State) Open() bool { return s == Waiting || s == Running }

var (
	// ErrNoReplay means that the slot has no replay of that number.
	ErrNoReplay = errors.New("there is no replay")
	// ErrOver means that a replay is done or cancelled.
	ErrOver = errors.New("the replay is over")
)

func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}
