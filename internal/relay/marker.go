package relay

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/printable"
)

const (
	// markInterval is how often rows are looked for that are still to be marked: of what was paid, discarded, or
	// locked by another session. markBatch is how many are looked at in one transaction.
	// While there is something to mark, the next pass begins after busyInterval.
	markInterval = time.Second
	busyInterval = 50 * time.Millisecond
	markBatch    = 1000
	// lockedAfter is how long a row may be locked before the relay says who has locked it.
	lockedAfter = time.Minute
)

// marker marks the rows that could not be marked when their events ended: of what was owed and is paid or
// discarded now, and of what another session had locked. It passes over all of them, again and again, a batch at a
// time. Its methods are called by the recorder's goroutine, but for unmarked.
type marker struct {
	ledger  ledger
	tracker *ack.Tracker
	epoch   int32 // of the server that is streamed
	log     *slog.Logger
	metrics *metrics
	stop    context.CancelCauseFunc // as the recorder's

	due      time.Time                    // when to mark the next batch
	pass     *debt.MarkPlace              // where the present pass stands; nil between two passes
	begun    time.Time                    // when it began
	found    map[debt.LockedRow]bool      // rows that it found locked
	locked   map[debt.LockedRow]time.Time // rows that were locked in each pass since then
	loggedAt time.Time                    // when an error was last logged

	mu     sync.Mutex
	err    error  // of the last batch, nil when it worked; guarded by mu
	locker string // who has locked a row for long, in a sentence; guarded by mu
}

// markOnce looks at one batch of the rows that are still to be marked. recorder.record and markOnce are the
// only places from which rows are marked: it knows what the stream has brought and what is open.
func (m *marker) markOnce(ctx context.Context) {
	if m.pass == nil {
		m.begun, m.found = time.Now(), make(map[debt.LockedRow]bool)
	}
	round, err := m.ledger.markRows(ctx, debt.MarkQuery{
		Passed: event.Position{Epoch: m.epoch, Commit: m.tracker.Passed()},
		Open:   m.tracker.OpenAmong, After: m.pass, Limit: markBatch,
	})
	m.mu.Lock()
	m.err = err
	m.mu.Unlock()
	if why := asChanged(err); why != nil {
		m.stop(why)
	}
	if err != nil {
		now := time.Now()
		if ctx.Err() == nil && now.Sub(m.loggedAt) >= time.Minute {
			m.loggedAt = now
			m.log.Warn("cannot mark rows of what was paid or discarded, will try again", "err", err)
		}
		m.metrics.failures.Inc()
		m.pass, m.due = nil, now.Add(5*markInterval)
		return
	}
	for _, row := range round.Locked {
		m.found[row] = true
	}
	if m.pass = round.Next; m.pass != nil {
		m.due = time.Now()
		return
	}
	m.endPass(ctx, round.Done > 0)
}

// endPass is called when all rows that are still to be marked were looked at. Where many of them have to wait, a
// pass takes long, and the next one begins later.
func (m *marker) endPass(ctx context.Context, busy bool) {
	now := time.Now()
	m.due = now.Add(max(markInterval, 5*now.Sub(m.begun)))
	if busy {
		m.due = now.Add(busyInterval)
	}
	before := m.locked
	m.locked = make(map[debt.LockedRow]time.Time, len(m.found))
	var oldest debt.LockedRow
	for row := range m.found {
		since, ok := before[row]
		if !ok {
			since = now
		}
		m.locked[row] = since
		if at := m.locked[oldest]; at.IsZero() || since.Before(at) {
			oldest = row
		}
	}
	sentence := ""
	if since, ok := m.locked[oldest]; ok && now.Sub(since) >= lockedAfter {
		who, err := m.ledger.lockedBy(ctx, oldest)
		if err != nil || who == "" {
			who = "a session that is not found"
		}
		sentence = fmt.Sprintf("%s cannot be marked, because another session has them locked, the longest since %s: event %q of source %q, locked by %s; end that session, or wait for it",
			printable.Count(int64(len(m.locked)), "row"), since.Format(time.RFC3339), oldest.EventID, oldest.Source, who)
	}
	m.mu.Lock()
	said := m.locker != ""
	m.locker = sentence
	m.mu.Unlock()
	if sentence != "" && !said {
		m.log.Warn("rows are locked", "problem", sentence)
	}
}

// markAll marks what can be marked at a stop.
func (m *marker) markAll(ctx context.Context) {
	m.pass = nil
	for again := true; again && ctx.Err() == nil; {
		m.markOnce(ctx)
		again = m.pass != nil
	}
}

// unmarked returns who has locked a row for long, or "", and why rows of what was paid or discarded cannot be
// marked, or nil.
func (m *marker) unmarked() (locker string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locker, m.err
}
