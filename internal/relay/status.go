package relay

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// State is what the relay is doing, in one word for people and for /ready.
type State string

// The states of a relay, in the order in which it goes through them.
const (
	Starting     State = "starting"     // not streaming yet: checking the server, publication and slot
	Streaming    State = "streaming"    // reads the slot
	Reconnecting State = "reconnecting" // lost Postgres, comes back by itself
	Waiting      State = "waiting"      // another session holds the slot; takes over when it is free
	Repairing    State = "repairing"    // the slot or the database has changed; reads everything again
	Stuck        State = "stuck"        // the server ends the stream with the same error at the same place, again and again
	Stopping     State = "stopping"     // draining
	Stopped      State = "stopped"      // ended; Problem says why if it was no clean stop
)

// Health is the answer to "does it move, and if not, who holds it".
type Health struct {
	// Ready is false when the relay does not stream, or when events are open and nothing has moved.
	Ready bool  `json:"ready"`
	State State `json:"state"`
	// Problems are sentences for a person: what is wrong and what to do.
	Problems []string `json:"problems,omitempty"`
}

// Progress is a snapshot of where the relay stands.
type Progress struct {
	Slot string `json:"slot"`
	// Holder and Term are those of its last leadership as walpost.leader has them; 0 before the first. They tell it
	// from a relay on another server whose slot has the same name.
	Holder       string       `json:"holder,omitempty"`
	Term         int64        `json:"term,omitempty"`
	State        State        `json:"state"`
	Received     event.LSN    `json:"-"`
	Confirmed    event.LSN    `json:"-"`
	ReceivedLSN  string       `json:"received_lsn"`
	ConfirmedLSN string       `json:"confirmed_lsn"`
	OpenEvents   int          `json:"open_events"`
	OpenBytes    int64        `json:"open_bytes"`
	Subscribers  []Subscriber `json:"subscribers"`
	// UntakenTypes are types of events that came since the process started and that no subscriber takes.
	UntakenTypes []UntakenType `json:"untaken_types,omitempty"`
}

// Subscriber is the part of Progress that belongs to one subscriber.
type Subscriber struct {
	Name      string `json:"name"`
	Open      int    `json:"open"`      // deliveries received, and neither finished nor owed
	Delivered uint64 `json:"delivered"` // since the process started
	Failed    uint64 `json:"failed"`    // failed attempts since the process started
	Dead      uint64 `json:"dead"`      // dead letters written since the process started
	// Lost are dead letters that cannot be sent any more: their rows were deleted, and there is no copy.
	Lost int64 `json:"lost,omitempty"`
	// Away: it fails whatever it is given, and one event at a time is tried. Paused: a person wants that.
	Away   bool `json:"away,omitempty"`
	Paused bool `json:"paused,omitempty"`
	// InDebt: its events are recorded in walpost.owed and sent from there; KeysInDebt: those of so many keys.
	InDebt     bool `json:"in_debt,omitempty"`
	KeysInDebt int  `json:"keys_in_debt,omitempty"`
	// HoldingWALBytes is how much WAL the server keeps for its oldest open or waiting event.
	HoldingWALBytes int64 `json:"holding_wal_bytes"`
	// OldestOpen is the id of the oldest open event, OldestSince when its transaction committed.
	OldestOpen  string    `json:"oldest_open,omitempty"`
	OldestSince time.Time `json:"oldest_since,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// IdlePatterns are those of its events: that no event has matched since the process started.
	IdlePatterns []string `json:"idle_patterns,omitempty"`
	// AbsentSources counts what waits for a source that is not in the configuration, by its name.
	AbsentSources map[string]int64 `json:"absent_sources,omitempty"`
	// Overdue are events whose handler has not returned although its deadline has passed.
	Overdue []string `json:"overdue,omitempty"`
}

// UntakenType is a type of events that no subscriber takes.
type UntakenType struct {
	Source string `json:"source"`
	Type   string `json:"type"`
}
