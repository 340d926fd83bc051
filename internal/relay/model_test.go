package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// The model drives tracker, dispatcher, lanes, debt and recorder through random interleavings of
// commits, failures, outages, unreadable events, crashes, clean stops, pauses, refused writes, ids that are used
// again, moves of the WAL budget, lost slots, and subscribers that leave and come back, get other names and other filters,
// under virtual time; what people do next to that stands in model_people_test.go. It compares what the subscribers got with the
// plain list of everything that was committed.

// history is what has happened so far.
type history struct {
	*rand.Rand
	server  *modelServer
	subs    []*modelSubscriber
	away    map[*modelSubscriber]bool // not in the configuration
	process *modelProcess
	plant   *plant
	log     *slog.Logger
	marked  []string // marks that were not true; guarded by server.mu
	unclean bool     // something happened after which an event may come again
	people  *rand.Rand
	late    []string // what came too late, stood still for no one, or was confirmed too far
	confirm watched
}

func newHistory(seed uint64, plant *plant, log *slog.Logger) *history {
	h := &history{
		Rand: rand.New(rand.NewPCG(seed, 1)), people: rand.New(rand.NewPCG(seed, 2)), plant: plant, log: log, away: make(map[*modelSubscriber]bool),
		server: &modelServer{end: 8000, confirmed: 8000, recorded: 8000,
			log: log, known: make(map[string]stored), deleted: make(map[string]bool), debt: debttest.NewMemory(),
			window: ack.Window{Events: 60, Bytes: 1 << 20},
			lane: lane.Options{
				Concurrency: 3, Batch: 4, Timeout: 10 * time.Second, StallAfter: 20 * time.Second,
				Backoff: lane.Backoff{Initial: 200 * time.Millisecond, Max: 5 * time.Second},
			}},
	}
	for i, ordering := range []lane.Ordering{lane.ByKey, lane.Total, lane.ByKey, lane.None} {
		sub := newModelSubscriber(fmt.Sprintf("s%d", i), ordering)
		if i >= 2 {
			sub.refuses = 50
		}
		sub.pipes, sub.silent = (seed+uint64(i))%3 == 0, 300
		h.subs = append(h.subs, sub)
	}
	h.server.onMark = func(of event.Identity) {
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		h.marked = append(h.marked, h.untrue(of.Occurrence)...)
	}
	h.server.debt.EveryEventHasARow(h.server.onMark)
	return h
}

// untrue names those subscribers for which a mark that is set at this moment is not true: an event that must come to them has not,
// and is no dead letter that a person gave up. It is called while the debt is locked, and must not call it. (P12)
func (h *history) untrue(id string) (broken []string) {
	commits := h.server.commits // ids count up
	i := sort.Search(len(commits), func(i int) bool { return commits[i].events[0].id > id })
	if i == 0 {
		return []string{fmt.Sprintf("P12: the mark of %q is that of no event", id)}
	}
	txn := commits[i-1]
	e := txn.events[slices.IndexFunc(txn.events, func(e modelEvent) bool { return e.id == id })]
	for _, sub := range h.subs {
		must, _ := sub.due(txn.commit, e)
		if _, had := sub.had.Load(id); must && !had {
			broken = append(broken, fmt.Sprintf("P12: %s of %v is marked, and %s has not had it", id, txn.commit, sub.name))
		}
	}
	return broken
}

// start begins another life with those subscribers that are in the configuration.
func (h *history) start(budget int64) {
	var subs []*modelSubscriber
	for _, sub := range h.subs {
		if len(sub.spans) == 0 {
			sub.lacks = maps.Clone(h.server.deleted)
		}
		sub.changes(h.server.end, h.away[sub])
		if !h.away[sub] {
			subs = append(subs, sub)
		}
	}
	h.process = startProcess(h.server, subs, budget, h.plant, h.log)
}

// ending is how a life of the relay ends.
type ending int

const (
	stops ending = iota
	crashes
	yields // because the slot is lost
)

// end ends this life.
func (h *history) end(how ending) {
	h.log.Debug("world: a life ends", "how", how) // 0 stops, 1 crashes, 2 yields
	switch how {
	case crashes:
		h.unclean = true
		h.process.crash()
	case yields:
		h.process.yield()
	case stops:
		h.process.stop()
	}
	<-h.process.ended
	h.process.crash()
	if s := h.server; s.confirmed > s.recorded {
		h.late = append(h.late, fmt.Sprintf("P2: confirmed %v is above the recorded %v at the end of a life", s.confirmed, s.recorded))
	}
}

// step lets one thing happen.
func (h *history) step() {
	sub := h.subs[h.IntN(len(h.subs))]
	sub.mu.Lock()
	defer sub.mu.Unlock()
	switch op := h.IntN(22); {
	case op < 9:
		for range 1 + h.IntN(10) {
			h.server.commit(h.Rand, 1+h.IntN(4), 8)
		}
	case op < 11:
		sub.down = !sub.down
	case op == 11:
		sub.hang = !sub.hang
	case op == 12:
		key := fmt.Sprintf("k%d", h.IntN(8))
		sub.bad[key] = !sub.bad[key]
	case op == 13:
		h.server.debt.Pause(sub.name, h.IntN(2) == 0)
	case op == 14:
		h.unclean = true // what was delivered and cannot be noted as paid comes again
		for range 1 + h.IntN(8) {
			h.server.debt.FailNext(errFull)
		}
	case op == 15:
		h.unclean = true // what cannot be recorded comes again
		h.server.mu.Lock()
		h.server.refuse = 1 + h.IntN(20)
		h.server.mu.Unlock()
	case op == 16: // TRUNCATE … RESTART IDENTITY, or a sequence that was set back
		h.server.mu.Lock()
		h.server.used = h.IntN(h.server.used + 1)
		h.server.mu.Unlock()
	case op == 17: // the lease is lost and got again, and no one else has led
		p := h.process // which another one follows, perhaps before the lease is back
		for _, l := range p.lanes {
			l.Suspend()
		}
		p.replaying.Go(func() {
			wait(p.run, 2*time.Second)
			for _, l := range p.lanes {
				l.Resume()
			}
		})
	}
}

// restart ends this life, sometimes, and begins another one with other settings.
func (h *history) restart() {
	dead := h.process.dead.Err() != nil
	if h.IntN(10) > 0 && !dead {
		return
	}
	how := ending(h.IntN(2))
	lost := noRepair
	if h.IntN(4) == 0 {
		how, lost = ending(h.IntN(3)), newSlot+repairKind(h.IntN(2))
	}
	if dead {
		how = crashes
	}
	h.end(how)
	h.join()
	if h.IntN(3) == 0 {
		sub := h.subs[h.IntN(len(h.subs))]
		if h.away[sub] {
			delete(h.away, sub)
		} else {
			h.away[sub] = true
		}
	}
	if sub := h.subs[h.IntN(len(h.subs))]; h.IntN(3) == 0 {
		sub.filter = []event.Filter{{}, {Events: []string{"t0"}}, {Events: []string{"t1", "t2"}}}[h.IntN(3)]
	}
	if sub := h.subs[h.IntN(len(h.subs))]; h.IntN(4) == 0 && !h.away[sub] {
		h.server.rename(sub.name, sub.name+"'")
		sub.mu.Lock()
		sub.name += "'"
		sub.mu.Unlock()
	}
	for h.server.commit(h.Rand, 1+h.IntN(4), 8); h.IntN(3) > 0; { // while no relay runs
		h.server.commit(h.Rand, 1+h.IntN(4), 8)
	}
	if lost != noRepair {
		h.loseSlot(lost)
	}
	h.start([]int64{0, 5000, Unlimited}[h.IntN(3)])
}

// loseSlot makes the next life repair. What is not marked comes again to those who had it, and may come to all who are
// in the configuration or have not had everything from before they left: a row has no place in the WAL.
func (h *history) loseSlot(lost repairKind) {
	h.unclean = true
	h.server.mu.Lock()
	h.server.lost = lost
	h.server.mu.Unlock()
	for _, txn := range h.server.commits {
		for _, e := range txn.events {
			if _, marked := h.server.debt.Marked(e.event()); marked {
				continue
			}
			for _, sub := range h.subs {
				sub.repaired[e.id] = true
			}
		}
	}
}

// recover lets everyone be well and present, for long enough to get everything.
func (h *history) recover() {
	h.endTrouble()
	h.server.commit(h.Rand, 1+h.IntN(4), 8) // a row of a repair is marked when the stream is past its bound
	time.Sleep(5 * time.Minute)
	if len(h.away) > 0 {
		h.end(stops)
		clear(h.away)
		h.start(Unlimited)
		h.server.commit(h.Rand, 1+h.IntN(4), 8)
		time.Sleep(5 * time.Minute)
	}
	h.end(stops)
}

// runModel is one random history. It returns the promises that were broken.
func runModel(seed uint64, plant *plant, log *slog.Logger) []string {
	h := newHistory(seed, plant, log)
	h.start(Unlimited)
	for range 150 {
		h.step()
		h.act()
		h.restart()
		time.Sleep(time.Duration(h.IntN(int(3 * time.Second))))
		if h.IntN(15) == 0 {
			time.Sleep(time.Duration(h.IntN(int(time.Minute))))
		}
		h.watchConfirm()
	}
	if seed%2 == 0 || plant.neverOwes {
		h.beFair()
		h.watchConfirm()
	}
	h.recover()
	time.Sleep(time.Second) // an Abort that no one waits for
	return h.broken()
}

// broken compares what the subscribers got with what was committed.
func (h *history) broken() []string {
	var broken []string
	complain := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	s := h.server
	broken = append(append(broken, h.marked...), h.late...)
	broken = append(broken, h.unmarked()...)
	for _, sub := range h.subs {
		for _, o := range sub.over {
			complain("P3: %s: %s", sub.name, o)
		}
		dead := make(map[string]bool)
		for _, letter := range s.debt.Owed(sub.name, lane.StateDead) {
			dead[letter.Event.OccurredAt] = true
			if !sub.unreadable(letter.Event.OccurredAt) && !sub.ended[letter.Event.OccurredAt] {
				complain("P2: %s: %s is dead and was well: %s", sub.name, letter.Event.OccurredAt, letter.Err)
			}
		}
		if waiting := s.debt.Owed(sub.name, lane.StateWaiting); len(waiting) > 0 {
			complain("P2: %s: %d deliveries wait for ever, the first is %s", sub.name, len(waiting), waiting[0].Event.OccurredAt)
		}
		early := make(map[string]bool) // they came by a filter that is younger than they are
		for _, txn := range s.commits {
			for _, e := range txn.events {
				must, may := sub.due(txn.commit, e)
				may = may || sub.repaired[e.id]
				early[e.id] = may && !must
			}
		}
		seen := make(map[string]bool)
		last, lastOfLife := make(map[string]string), make(map[string]string) // ids count up as they commit
		for i, id := range sub.got {
			within := sub.within(sub.keys[id], id)
			if slices.Contains(sub.lives, i) {
				clear(lastOfLife)
			}
			if sub.moved[id] || seen[id] && (sub.again[id] || sub.repeats[id]) {
				seen[id] = true
				continue
			}
			if !early[id] {
				if id < lastOfLife[within] {
					complain("P3: %s: %s came after %s in one life of the relay", sub.name, id, lastOfLife[within])
				}
				lastOfLife[within] = id
			}
			if seen[id] {
				if !h.unclean {
					complain("P11: %s got %s twice without a crash", sub.name, id)
				}
				continue
			}
			seen[id] = true
			if early[id] {
				continue
			}
			if id < last[within] {
				complain("P3: %s: %s came for the first time after %s", sub.name, id, last[within])
			}
			last[within] = id
		}
		for _, txn := range s.commits {
			for _, e := range txn.events {
				must, may := sub.due(txn.commit, e)
				switch may = may || sub.repaired[e.id]; {
				case must && !seen[e.id] && !dead[e.id] && !sub.ended[e.id]:
					complain("P2: %s: %s of %v is neither delivered nor dead; it is there in %v", sub.name, e.id, txn.commit, sub.spans)
				case !may && (seen[e.id] || dead[e.id]):
					complain("%s: %s of %v is not for it and came; it is there in %v", sub.name, e.id, txn.commit, sub.spans)
				}
			}
		}
	}
	return broken[:min(len(broken), 10)]
}

// few is a number of the model's tests with the race detector, else their full one. The detector makes virtual time six
// times as expensive, and meets a race in the first histories. "make test" runs the model both with it and without.
func few(withRace, full int) int {
	if underRace {
		return withRace
	}
	return full
}

// rounds is how many histories are tried.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("WALPOST_ROUNDS")); err == nil && n > few {
		return n
	}
	return few
}

// modelLog keeps the log of a history, or writes it at once. A history that was found broken cannot always be repeated
// from its seed: the order of goroutines is no part of it.
func modelLog(t *testing.T, atOnce bool) (*slog.Logger, *bytes.Buffer) {
	kept := new(bytes.Buffer) // the handler writes one line at a time
	if atOnce {
		return slog.New(slog.NewTextHandler(t.Output(), nil)), kept
	}
	start := time.Now()
	return slog.New(slog.NewTextHandler(kept, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.DurationValue(a.Value.Time().Sub(start))
		}
		return a
	}})), kept
}

// S-96, S-98 and S-99 among others. WALPOST_SEED repeats one history, with its log.
func TestModel_keepsItsPromisesThroughRandomHistories(t *testing.T) {
	only := os.Getenv("WALPOST_SEED")
	for seed := range uint64(rounds(few(4, 40))) {
		if only != "" && only != fmt.Sprint(seed) {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log, written := modelLog(t, only != "")
				for _, b := range runModel(seed, &plant{}, log) {
					t.Errorf("seed %d: %s", seed, b)
				}
				if t.Failed() && written.Len() > 0 {
					t.Log("what happened:\n" + written.String())
				}
			})
		})
	}
}

// Five minutes with default settings, for one that hangs, one that fails always, one that fails for one key,
// and a healthy one, at 50 events a second: the virtual clock costs real time for each event. The soak test
// has 500.
func TestModel_losesAndSwapsNothingInFiveMinutesOfTrouble(t *testing.T) {
	t.Parallel()
	fiveMinutesOfTrouble(t, few(10, 50))
}

func fiveMinutesOfTrouble(t *testing.T, rate int) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(1, &plant{}, slog.New(slog.DiscardHandler))
		h.server.window, h.server.largePage = ack.Window{Events: 10_000, Bytes: 32 << 20}, true
		h.server.lane = lane.Options{
			Concurrency: 8, Batch: 500, Timeout: 10 * time.Second, StallAfter: time.Minute, MaxAttempts: 0,
			Backoff: lane.Backoff{Initial: 200 * time.Millisecond, Max: 30 * time.Second},
		}
		for _, sub := range h.subs {
			sub.ordering, sub.refuses, sub.silent = lane.ByKey, 0, 0
		}
		hanging, failing, picky, healthy := h.subs[0], h.subs[1], h.subs[2], h.subs[3]
		hanging.hang, failing.down, picky.bad["k7"] = true, true, true
		h.start(Unlimited)
		const events = 10 // of a transaction
		for range 5 * 60 * rate / events {
			h.server.commit(h.Rand, events, 40)
			time.Sleep(time.Second * events / time.Duration(rate))
		}
		time.Sleep(time.Second)
		of := func(sub *modelSubscriber) int {
			sub.mu.Lock()
			defer sub.mu.Unlock()
			return len(sub.got)
		}
		all := h.server.ids
		if got := of(healthy); got != all {
			t.Errorf("the healthy one has %d of %d events after the last", got, all)
		}
		if got, least := of(picky), all*38/40; got < least {
			t.Errorf("the one that fails for a key of 40 has %d of %d events, want at least %d", got, all, least)
		}
		if got := of(hanging) + of(failing); got != 0 {
			t.Errorf("the two others have %d events, want none", got)
		}
		h.recover()
		for _, b := range h.broken() {
			t.Error(b)
		}
	})
}
