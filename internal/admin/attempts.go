package admin

import (
	"time"

	"github.com/backendstart/walpost/internal/relay"
)

// Remembered is the answer of GET /v1/attempts.
type Remembered struct {
	Slot string `json:"slot"` // of the relay that answers
	// Since is the time of the oldest attempt that the relay remembers, zero while there was none.
	Since time.Time `json:"since,omitzero"`
	// Attempts are in the order in which they ended.
	Attempts []relay.Attempt `json:"attempts"`
	// Open are the subscribers for which the relay has the event in hand, where one was asked for, and InHand says
	// which events with that id these are.
	Open   []string             `json:"open,omitempty"`
	InHand []relay.OpenDelivery `json:"in_hand,omitempty"`
}

// Line is one line of a stream: an attempt, or one of the two numbers.
type Line struct {
	*relay.Attempt
	// Missed is how many attempts the reader was too slow for: of the whole relay, because no one knows
	// whether the filter would have chosen them.
	Missed uint64 `json:"missed,omitempty"`
	// After is up to which Seq everything was looked at, sent while there is nothing else to send.
	After uint64 `json:"after,omitempty"`
}
