package relay

import (
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// session is one replication connection and what was found when it was opened.
type session struct {
	conn        *wal.Conn
	key         store.Key         // by which it is recorded as the one that has the slot
	slot        *wal.Slot         // as it was found, nil if there was none
	record      *store.SlotRecord // what was known of it, nil if nothing
	published   slot.Published
	system      wal.System
	epoch       int32
	confirmed   event.LSN         // where the slot stands
	recorded    event.LSN         // what the leader before has recorded as confirmed, 0 unless the slot is as it left it
	fingerprint store.Fingerprint // what is recorded of what is published
	writers     []slot.Writer     // a second pass over the tables waits for their end
	begun       time.Time         // when it was found out what to do about the slot
	tables      []*outbox.Table
	budget      int64             // bytes of WAL that debt may hold
	horizon     event.LSN         // end of the WAL when we took the lead
	end         event.LSN         // of the WAL, not all of it flushed, when the positions were read
	known       map[string]stored // what is recorded of subscribers, in the configuration or not
	members     []member          // who gets what, by number in the tracker; nil until it is known
}

// compare compares what is published with what is recorded.
func (s *session) compare() slot.Difference {
	if s.record == nil {
		return slot.Difference{}
	}
	return slot.Compare(s.record.Fingerprint, s.published.Now)
}

// tablesOf are the tables of sources.
func (s *session) tablesOf(sources []string) []*outbox.Table {
	var tables []*outbox.Table
	for _, table := range s.tables {
		if slices.Contains(sources, table.Source.Name) {
			tables = append(tables, table)
		}
	}
	return tables
}

// recordOf is what is to be recorded of the slot as the session has it.
func (s *session) recordOf(name string) store.SlotRecord {
	return store.SlotRecord{Name: name, SystemID: s.system.ID, Timeline: s.system.Timeline, Epoch: s.epoch, Confirmed: s.confirmed, Fingerprint: s.fingerprint}
}

// former are the tables that were sources.
func (s *session) former() []dispatch.Former {
	var former []dispatch.Former
	for _, source := range s.fingerprint.Sources {
		if source.Former && source.Table != "" {
			former = append(former, dispatch.Former{Source: source.Name, Schema: source.Schema, Table: source.Table, OID: source.OID})
		}
	}
	return former
}

// doubted are the subscribers whose positions are not believed, in the order of their names.
func (s *session) doubted() []string {
	var names []string
	for name, k := range s.known {
		if k.doubt != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// stored is what walpost.subscribers says of a subscriber.
type stored struct {
	secured event.Position
	goneAt  string // since when it has left the configuration, "" while it has not
	wants   wants
	doubt   string // why its positions are not believed, "" if they are
}

// position is from where the subscriber goes on: where nothing can be believed, at the beginning of the slot.
func (k stored) position(epoch int32) event.Position {
	if k.doubt != "" {
		return event.Position{Epoch: epoch}
	}
	return k.secured
}

// securedIn is up to where everything is finished or owed, as far as that says something of the epoch.
func (k stored) securedIn(epoch int32) event.Position {
	if k.doubt != "" || k.secured.Epoch != epoch {
		return event.Position{}
	}
	return k.secured
}

// member is a subscriber as a session serves it: one of the configuration, which has a lane, or one that has left
// and of which something is to be recorded still.
type member struct {
	name         string
	after        event.Position // what it needs begins after it
	wants        wants
	left         bool
	subscription Subscription // of one that has not left
	// found says how the position was found, for the log.
	found finding
}

type finding int

const (
	goesOn    finding = iota // at its recorded position
	isNew                    // to the slot: at now
	beginning                // new, and begins with all rows that the tables have
	isBack                   // it had left: at now
)
