// Package slot decides what to do about the replication slot before it is read. Facts are gathered once, Diagnose makes
// a Plan of them and touches nothing, and package relay carries the plan out, step by step. (docs/postgres.md §3 to §5)
//
// It must never change the slot, the publication or a table itself. Read facts.go, then diagnose.go; fingerprint.go and
// writers.go ask the server.
package slot

import (
	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// Facts are what is known before anything is changed.
type Facts struct {
	Name, Publication string
	Server            *wal.Slot         // the slot as the server has it; nil if there is none
	Record            *store.SlotRecord // what is recorded of it; nil if nothing is
	EverReady         bool              // a relay has streamed from it before: its subscribers are recorded
	System            wal.System        // that the connections lead to
	End               event.LSN         // of the WAL, flushed or not
	Published         Published
	Sources           []Source            // of the configuration
	Doubts            []Doubt             // subscribers whose recorded positions cannot be true
	MarkedByOthers    []store.MarkedTable // tables of the sources that another slot marks
	// StopOnLoss leaves every repair to a person; Unpublished is how many rows of the tables wait then.
	StopOnLoss  bool
	Unpublished int64
	// Unreadable is why the stream cannot be read any more, as the last session of this process has met it; "" if it
	// can.
	Unreadable string
	// WritersEnded says that this process has seen the end of every transaction that a second pass waits for; Awaiting
	// that it is waiting for it.
	WritersEnded, Awaiting bool
}

// Published is what the publication carries.
type Published struct {
	Exists, Inserts bool
	Now             store.Fingerprint // of the sources of the configuration
	Missing         []string          // names of sources whose tables it does not carry
	Unstreamed      []*wal.SetupError // rows of sources that their streams have not
	Filters         map[string]string // by name of a source: the condition without which rows of it are left out; from 15 on
}

// Source is what a repair must know about a source.
type Source struct {
	Name  string
	Table pgx.Identifier // nil for messages
	Marks bool           // its rows are marked when they are delivered
	// RepairAll sends all its rows where none is marked.
	RepairAll bool
	// Attached says that partitions which have come bring rows that were never streamed.
	Attached bool
}

// Doubt is why the recorded position of a subscriber cannot be true.
type Doubt struct{ Subscriber, Reason string }

// systemOf is the server that the slot was read from.
func systemOf(record *store.SlotRecord) wal.System {
	return wal.System{ID: record.SystemID, Timeline: record.Timeline}
}

// Epoch is the epoch of positions on a server: it grows when the server becomes another one.
func Epoch(record *store.SlotRecord, system wal.System) int32 {
	switch {
	case record == nil:
		return 1
	case record.SystemID != system.ID:
		return record.Epoch + 1
	}
	return record.Epoch
}
