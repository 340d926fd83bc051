package lane_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// debt is walpost.owed of one subscriber in memory.
type debt struct {
	rig *rig

	mu      sync.Mutex
	rows    map[string]*row // by event id; guarded by mu
	order   []*row          // the same by position; nil when not known; guarded by mu
	letters []lane.Owed     // every dead letter in the order in which it was recorded; guarded by mu
	refused int             // dead letters; guarded by mu
	refuse  bool            // the database refuses dead letters; guarded by mu
	paused  string          // why, "" when it is not; guarded by mu
	noPause bool            // the database refuses to pause; guarded by mu
	changes int64           // by people; guarded by mu
	marked  map[string]bool // event ids whose rows are published; set before the lane runs
	named   int             // most keys that a query named; guarded by mu
	counts  int             // pages of counts; guarded by mu
	read    int             // rows that Waiting has returned; guarded by mu

	slow time.Duration // how long Known and Record take; set before the lane runs
}

type row struct {
	lane.Owed
	state lane.State
}

var errRefused = errors.New("no space left on device")

func newDebt(r *rig) *debt { return &debt{rig: r, rows: make(map[string]*row)} }

// refuseDead makes the database refuse dead letters, or take them again.
func (d *debt) refuseDead(refuse bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
}

func (d *debt) pagesCounted() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// dead returns all dead letters and how many were refused.
func (d *debt) dead() (letters []lane.Owed, refused int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.letters), d.refused
}

// asked is how many keys a query named at most.
func (d *debt) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.named
}

// readRows is how many rows Waiting has returned.
func (d *debt) readRows() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read
}

// redrive is a person who sends all dead letters again.
func (d *debt) redrive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	for _, r := range d.rows {
		if r.state == lane.StateDead {
			r.state = lane.StateWaiting
		}
	}
}

// waiting is what is left to pay.
func (d *debt) waiting() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for _, r := range d.inOrder() {
		if r.state == lane.StateWaiting {
			ids = append(ids, r.Event.ID)
		}
	}
	return ids
}

// inOrder returns the rows in the order of their positions; mu is held.
func (d *debt) inOrder() []*row {
	if d.order == nil {
		d.order = slices.SortedFunc(maps.Values(d.rows), func(a, b *row) int { return a.Event.Position.Compare(b.Event.Position) })
	}
	return d.order
}

func (d *debt) Load(_ context.Context, _ string, secured event.Position, limit lane.Limit) (lane.Debt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := lane.Debt{Keys: make(map[string]int), Bounds: make(map[string]event.LSN), Change: d.changes}
	waiting := 0
	for _, r := range d.rows {
		if r.state == lane.StateWaiting {
			waiting++
			found.Keys[r.Event.Key]++
		}
		ahead := r.Event.Bound > secured.Commit
		found.Beyond = found.Beyond || ahead || r.Event.Position.Compare(secured) > 0
		if !ahead {
			continue
		}
		found.Bound = max(found.Bound, r.Event.Bound)
		if r.state == lane.StateWaiting {
			found.Bounds[r.Event.Key] = max(found.Bounds[r.Event.Key], r.Event.Bound)
		}
	}
	if len(found.Keys) > limit.Keys || waiting > limit.Rows {
		found.Keys, found.Bounds, found.More = nil, nil, true
	}
	return found, nil
}

func (d *debt) Count(_ context.Context, _ string, after event.Position, limit lane.Limit) (lane.Counted, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts++
	counted := debttest.CountPage(func(yield func(*event.Event) bool) {
		for _, r := range d.inOrder() {
			if r.state == lane.StateWaiting && r.Event.Position.Compare(after) > 0 && !yield(r.Event) {
				return
			}
		}
	}, after, limit)
	counted.Change = d.changes
	return counted, nil
}

func (d *debt) FindMarked(_ context.Context, events []*event.Event) (marked []int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, e := range events {
		if d.marked[e.ID] {
			marked = append(marked, n)
		}
	}
	return marked, nil
}

func (d *debt) Record(_ context.Context, _ string, owed []lane.Owed) (others []int, err error) {
	time.Sleep(d.slow)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range owed {
		switch r := d.rows[o.Event.ID]; {
		case r == nil:
			d.rows[o.Event.ID], d.order = &row{o, lane.StateWaiting}, nil
		case r.Event.Bound != 0 && o.Event.Bound == 0 && r.state != lane.StatePaid:
			r.Event, d.order = o.Event, nil
		}
	}
	return nil, nil
}

func (d *debt) Dead(_ context.Context, _ string, letter lane.Owed) (other bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse {
		d.refused++
		return false, errRefused
	}
	before := d.rows[letter.Event.ID]
	d.rows[letter.Event.ID], d.order = &row{letter, lane.StateDead}, nil
	d.letters = append(d.letters, letter)
	if before != nil && before.state == lane.StateWaiting {
		d.rig.noteEnd(end{id: letter.Event.ID, dead: true, attempts: letter.Attempts})
	}
	return false, nil
}

func (d *debt) Waiting(_ context.Context, _ string, query lane.Query) (lane.WaitingPage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var page lane.WaitingPage
	if query.Order == lane.ByKey && query.Change != d.changes {
		return page, lane.ErrChanged
	}
	d.named = max(d.named, len(query.Without)+len(query.InHand))
	var bytes int64
	examined := 0
	back := make(map[string]bool) // keys that are kept back
	for _, key := range query.Without {
		back[key] = true
	}
	inHand := make(map[string]bool)
	for _, key := range query.InHand {
		inHand[key] = true
	}
	for _, r := range d.inOrder() {
		if query.WithoutBlocked && r.state == lane.StateDead {
			back[r.Event.Key] = true
		}
	}
	for _, r := range d.inOrder() {
		if r.state != lane.StateWaiting {
			continue
		}
		behind := r.Event.Position.Compare(query.After) <= 0
		late := !query.Due.IsZero() && r.NextAttempt.After(query.Due)
		failed := !r.FirstFailure.IsZero()
		if query.Order == lane.ByKey && failed && (late || behind && !inHand[r.Event.Key]) {
			back[r.Event.Key] = true
		}
		if behind {
			continue
		}
		if page.More = query.Examine > 0 && examined == query.Examine; page.More {
			return page, nil
		}
		examined++
		switch {
		case back[r.Event.Key], query.Order == lane.None && late:
			page.Reached = r.Event.Position
			continue
		case len(page.Owed) == query.Limit, len(page.Owed) > 0 && bytes >= query.Bytes:
			page.More = true
			return page, nil
		}
		bytes += int64(r.Event.Size())
		page.Owed, page.Reached = append(page.Owed, r.Owed), r.Event.Position
		d.read++
	}
	return page, nil
}

func (d *debt) Sample(_ context.Context, _ string, order lane.Ordering, pick float64) ([]lane.Owed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := make(map[string]bool)
	var due []lane.Owed
	for _, r := range d.inOrder() {
		key := r.Event.Key
		if order == lane.None {
			key = r.Event.ID
		}
		if r.state != lane.StateWaiting || seen[key] {
			continue
		}
		seen[key] = true
		if !r.NextAttempt.After(time.Now()) {
			due = append(due, r.Owed)
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	n := int(pick * float64(len(due)))
	return due[n : n+1], nil
}

func (d *debt) Known(_ context.Context, _ string, events []*event.Event) (map[int]lane.Recorded, error) {
	time.Sleep(d.slow)
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[int]lane.Recorded)
	for i, ev := range events {
		if r := d.rows[ev.ID]; r != nil {
			known[i] = lane.Recorded{State: r.state, MadeUp: r.Event.Bound != 0}
		}
	}
	return known, nil
}

func (d *debt) Paid(_ context.Context, _ string, paid []lane.Paid, secured event.Position) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range paid {
		d.rows[p.Event.ID].state = lane.StatePaid
		d.rig.noteEnd(end{id: p.Event.ID, attempts: p.Attempts})
	}
	for id, r := range d.rows {
		if r.state == lane.StatePaid && r.Event.Position.Compare(secured) <= 0 {
			delete(d.rows, id)
			d.order = nil
		}
	}
	return nil
}

func (d *debt) Failed(_ context.Context, _ string, owed []lane.Owed) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range owed {
		if r := d.rows[o.Event.ID]; r != nil && r.state == lane.StateWaiting {
			r.Owed = o
		}
	}
	return nil
}

func (d *debt) Changes(context.Context, string) (lane.Changes, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	look := lane.Changes{Paused: d.paused != "", Change: d.changes}
	for _, r := range d.inOrder() {
		if r.state == lane.StateWaiting {
			look.Oldest, look.Any, look.OldestAt = r.Event.Position, true, r.Event.CommittedAt
			look.Holds = &look.Oldest
			break
		}
	}
	return look, nil
}

func (d *debt) Unwanted(_ context.Context, _, why string) error {
	d.mu.Lock()
	refuse := d.noPause
	d.mu.Unlock()
	if refuse {
		return errRefused
	}
	d.pause(why)
	return nil
}

// refusePause makes the database refuse to pause the subscriber, or take it again.
func (d *debt) refusePause(refuse bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noPause = refuse
}

// pause pauses the subscriber, or with "" resumes it.
func (d *debt) pause(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = why
	d.changes++
}

func (d *debt) Blocked(_ context.Context, _ string, limit int) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var keys []string
	for _, r := range d.inOrder() {
		if r.state == lane.StateDead && !slices.Contains(keys, r.Event.Key) {
			keys = append(keys, r.Event.Key)
		}
	}
	return keys[:min(len(keys), limit+1)], nil
}
