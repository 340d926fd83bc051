package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// Status is how slot, leader and subscribers stand as far as the database knows. What a running relay has
// in memory is in its /progress: events that it holds for less than stall_after are in no table.
type Status struct {
	At          time.Time    `json:"at"` // by the server's clock
	Slot        Slot         `json:"slot"`
	Leader      *Leader      `json:"leader,omitempty"` // nil before the first
	Subscribers []Subscriber `json:"subscribers"`
	// Unread are other slots of walpost in this database that no one reads: one that a new name in slot: has left behind, or
	// one whose relay is down.
	Unread []wal.Unread `json:"unread_slots,omitempty"`
	// Strangers are sessions of other roles at the advisory locks by which relays show that they live. They stop nothing.
	Strangers []store.Stranger `json:"strangers,omitempty"`
}

// Slot is the replication slot. Sizes are in bytes.
type Slot struct {
	Name string `json:"name"`
	// State is what walpost has recorded: "creating", "ready", or "" when no relay has used this name.
	State string `json:"state,omitempty"`
	// Exists tells whether the server has it; what follows is empty without.
	Exists       bool   `json:"exists"`
	Active       bool   `json:"active"` // someone reads it
	ActivePID    int    `json:"active_pid,omitempty"`
	WALStatus    string `json:"wal_status,omitempty"`
	Invalidation string `json:"invalidation,omitempty"`
	// LostReason says in words why the server has given the slot up; "" while it has not.
	LostReason string `json:"lost_reason,omitempty"`
	Confirmed  string `json:"confirmed_lsn,omitempty"`
	LagBytes   int64  `json:"lag_bytes"`      // from the confirmed position to the end of the WAL
	Retained   int64  `json:"retained_bytes"` // that the server keeps for the slot
	Safe       *int64 `json:"safe_wal_bytes"` // that may be written before it is lost; nil without a limit
	// HeldBackBy is synchronized_standby_slots while the server waits for one of them before it sends.
	HeldBackBy string `json:"held_back_by,omitempty"`
}

// Leader is who dispatches, or did so last.
type Leader struct {
	Holder string `json:"holder"` // host/pid
	Term   int64  `json:"term"`
}

// States of a Subscriber.
const (
	Live   = "live"
	Paused = "paused" // a person has paused it
	Gone   = "gone"   // it has left the configuration
)

// Subscriber is what is recorded of a subscriber.
type Subscriber struct {
	Name   string    `json:"name"`
	State  string    `json:"state"`
	GoneAt time.Time `json:"gone_at,omitzero"`
	// NotBelieved is why its recorded position cannot be true; the next start of a relay repairs.
	NotBelieved string    `json:"not_believed,omitempty"`
	LastSeen    time.Time `json:"last_seen"` // when a relay last wrote its position
	// Finished and Secured are up to where everything is finished, and finished or owed.
	Finished string `json:"finished"`
	Secured  string `json:"secured"`
	// FinishedLSN is the commit LSN of Finished, as Postgres writes it.
	FinishedLSN string `json:"finished_lsn"`
	// LagBytes is the WAL from its oldest waiting delivery, or else from what is finished or confirmed, to the
	// end; after AddProgress it begins, for one that has nothing to do, where the relay has read to. A subscriber that has left has
	// none.
	LagBytes int64 `json:"lag_bytes"`
	// HoldingWALBytes is the WAL that the slot keeps for its debt.
	HoldingWALBytes int64 `json:"holding_wal_bytes"`
	Waiting         Owed  `json:"waiting"`
	Dead            Owed  `json:"dead"`
}

// Owed is how much is owed, and since when the oldest of it.
type Owed struct {
	Deliveries int64     `json:"deliveries"`
	Since      time.Time `json:"since,omitzero"`
}

// Status looks at the database. It counts everything that is owed.
func (a *Service) Status(ctx context.Context) (Status, error) {
	s := Status{Slot: Slot{Name: a.slot}, Subscribers: []Subscriber{}}
	if err := a.pool.QueryRow(ctx, `SELECT pg_catalog.now()`).Scan(&s.At); err != nil {
		return s, fmt.Errorf("look up slot %q: %w", a.slot, err)
	}
	record, err := store.ReadSlotRecord(ctx, a.pool, a.slot)
	if err != nil {
		return s, err
	}
	var epoch int32
	if record != nil {
		s.Slot.State, epoch = string(record.State), record.Epoch
	}
	s.At = s.At.UTC()
	holder, term, err := store.LastLeader(ctx, a.pool, a.slot)
	if err != nil {
		return s, err
	}
	if term > 0 {
		s.Leader = &Leader{holder, term}
	}
	if s.Strangers, err = store.FindStrangers(ctx, a.pool, a.slot); err != nil {
		return s, err
	}
	slot, err := wal.FindSlot(ctx, a.pool, a.slot)
	if err != nil {
		return s, err
	}
	if slot != nil {
		s.Slot.Exists, s.Slot.Active, s.Slot.ActivePID = true, slot.Active, slot.ActivePID
		s.Slot.WALStatus, s.Slot.Invalidation, s.Slot.Confirmed = slot.WALStatus, slot.Invalidation, slot.Confirmed.String()
		s.Slot.LagBytes, s.Slot.Retained, s.Slot.Safe = max(0, slot.LagBytes), max(0, slot.RetainedBytes), slot.SafeBytes
		s.Slot.HeldBackBy = slot.HeldBackBy
		if slot.Lost() {
			s.Slot.LostReason = slot.LostReason()
		}
	}
	records, err := store.ListSlotRecords(ctx, a.pool)
	if err != nil {
		return s, err
	}
	var others []string
	for _, r := range records {
		if r.Name != a.slot {
			others = append(others, r.Name)
		}
	}
	if s.Unread, err = wal.FindUnread(ctx, a.pool, others); err != nil {
		return s, err
	}
	rows, err := a.debt().Subscribers(ctx)
	if err != nil {
		return s, err
	}
	for _, row := range rows {
		s.Subscribers = append(s.Subscribers, subscriberOf(row, slot, epoch))
	}
	return s, nil
}

// IsReadBy reports whether p is of the relay that reads this slot now. Its name alone does not tell: a slot of another
// server may have the same, and WAL positions that mean nothing here.
func (s *Status) IsReadBy(p relay.Progress) bool {
	return s.Slot.Active && s.Leader != nil && p.State == relay.Streaming &&
		p.Slot == s.Slot.Name && p.Holder == s.Leader.Holder && p.Term == s.Leader.Term
}

// AddProgress adds what p has in memory, if it is of the relay that reads the slot. While nothing is committed for it, a relay writes
// nothing, and confirms what others write to the WAL in large steps; so only the relay knows that it has seen more, and
// that none of it was for a subscriber.
func (s *Status) AddProgress(p relay.Progress) {
	confirmed, err := event.ParseLSN(s.Slot.Confirmed)
	if err != nil || !s.IsReadBy(p) {
		return
	}
	end := confirmed + event.LSN(s.Slot.LagBytes)
	seen, err := event.ParseLSN(p.ReceivedLSN)
	if err != nil {
		return
	}
	idle := map[string]bool{}
	for _, sub := range p.Subscribers {
		idle[sub.Name] = sub.Open == 0 && !sub.InDebt && sub.KeysInDebt == 0
	}
	for i := range s.Subscribers {
		sub := &s.Subscribers[i]
		if sub.State == Live && sub.Waiting.Deliveries == 0 && idle[sub.Name] {
			sub.LagBytes = min(sub.LagBytes, int64(end-min(seen, end)))
		}
	}
}

func subscriberOf(row debt.SubscriberRow, slot *wal.Slot, epoch int32) Subscriber {
	s := Subscriber{
		Name: row.Name, State: Live, GoneAt: row.GoneAt, NotBelieved: row.Doubt, LastSeen: row.LastSeen,
		Finished: row.Finished.String(), Secured: row.Secured.String(), FinishedLSN: row.Finished.Commit.String(),
		Waiting: Owed{row.Waiting.Number, row.Waiting.Since}, Dead: Owed{row.Dead.Number, row.Dead.Since},
	}
	switch {
	case !row.GoneAt.IsZero():
		s.State = Gone
	case row.Paused:
		s.State = Paused
	}
	if slot == nil || slot.Confirmed == 0 || s.State == Gone {
		return s
	}
	end := slot.Confirmed + event.LSN(max(0, slot.LagBytes))
	behind := func(lsn event.LSN) int64 { return int64(end - min(lsn, end)) }
	oldest := row.Waiting.Oldest
	switch {
	case row.Waiting.Number == 0:
		// An idle subscriber's position is not written; the slot's goes on.
		finished := slot.Confirmed
		if row.Finished.Epoch == epoch {
			finished = max(finished, row.Finished.Commit)
		}
		s.LagBytes = behind(finished)
	case oldest.Epoch != epoch:
		s.LagBytes = behind(slot.Confirmed) // of another server: not to be compared
	default:
		s.LagBytes = behind(oldest.Commit)
		if oldest.Commit >= slot.Confirmed {
			s.HoldingWALBytes = s.LagBytes
		} // else the WAL budget has let it go
	}
	return s
}
