package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-31, S-32: ids are used again in every way, while subscribers are away or refuse, the relay stops and dies, and
// the slot is lost. Each event is its payload. In the end every row of the table has been had by everyone, or
// stands as a dead letter and is not marked; and so has every row that was removed, unless it went before the
// stream or a repair could bring it.
func TestRelay_takesNoEventForAnotherThroughRandomHistories(t *testing.T) {
	t.Parallel()
	only := os.Getenv("WALPOST_SEED")
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv("WALPOST_ROUNDS")); err == nil {
		rounds = max(rounds, n)
	}
	for round := range rounds {
		seed := uint64(time.Now().UnixNano())
		if only != "" {
			seed, _ = strconv.ParseUint(only, 10, 64)
		}
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			t.Logf("WALPOST_SEED=%d", seed)
			newReuse(t, seed, round%2 == 0).run()
		})
	}
}

// reuse is one history.
type reuse struct {
	*rand.Rand
	t        *testing.T
	db       *testdb.DB
	timed    bool // the table has a time column
	subs     []*moodySubscriber
	relay    *running
	kill     func()
	payloads int
	removed  map[string]bool // payloads of rows that are not in the table any more
	lossy    bool            // a slot was lost after a row had been removed
}

// moodySubscriber takes events, is away, or refuses for good.
type moodySubscriber struct {
	*changing
	mu  sync.Mutex
	got map[string]bool // payloads; guarded by mu
}

func newMoody(name string) *moodySubscriber {
	m := &moodySubscriber{got: make(map[string]bool)}
	m.changing = newChanging(name, m.handle)
	return m
}

func (m *moodySubscriber) handle(_ context.Context, d subscriber.Delivery) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got[string(d.Payload)] = true
	return nil
}

func (m *moodySubscriber) has(payload string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.got[payload]
}

func newReuse(t *testing.T, seed uint64, timed bool) *reuse {
	h := &reuse{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, db: testdb.New(t), timed: timed,
		subs: []*moodySubscriber{newMoody("one"), newMoody("two")}, removed: make(map[string]bool)}
	definition := occurrences["by content"]
	if timed {
		definition = occurrences["by time"]
	}
	counted(h.db, definition)
	return h
}

func (h *reuse) run() {
	h.start()
	for range 40 {
		h.step()
		if h.IntN(3) == 0 {
			pause := time.NewTimer(time.Duration(h.IntN(400)) * time.Millisecond)
			<-pause.C
		}
	}
	h.recover()
	h.check()
}

func (h *reuse) start() {
	o := owing(options(h.t, h.db, h.subs[0], h.subs[1]))
	o.Sources[0].Name, o.Sources[0].Table = "counted", "counted"
	h.relay, h.kill = startMortal(h.t, h.db, o)
}

// restart ends this life, softly or not, and perhaps the slot.
func (h *reuse) restart() {
	if h.IntN(2) == 0 {
		h.relay.shutDown()
	} else {
		h.kill()
		_ = h.relay.wait()
	}
	between := h.IntN(3)
	if between > 0 {
		h.insert()
	}
	if between > 1 {
		h.removeAll()
		h.insert()
	}
	if h.IntN(3) == 0 {
		h.lossy = true
		h.db.Exec(dropSlot, h.db.Name)
	}
	h.start()
}

func (h *reuse) insert() {
	for range 1 + h.IntN(4) {
		h.payloads++
		insertCounted(h.db, fmt.Sprint("p", h.payloads))
	}
}

func (h *reuse) removeAll() {
	for _, payload := range h.db.Texts(`SELECT payload FROM counted`) {
		h.removed[payload] = true
	}
	h.db.Exec(restartIdentity)
}

func (h *reuse) step() {
	sub := h.subs[h.IntN(len(h.subs))]
	switch op := h.IntN(16); {
	case op < 6:
		h.insert()
	case op < 8:
		sub.behave(sub.handle)
	case op == 8:
		sub.behave(away)
	case op == 9:
		sub.behave(func(context.Context, subscriber.Delivery) error { return subscriber.Permanent(errAway) })
	case op < 12:
		h.removeAll()
	case op == 12: // one row goes, and another one takes its id
		id := h.db.Texts(`SELECT id::text FROM counted ORDER BY random() LIMIT 1`)
		if len(id) == 0 {
			return
		}
		h.removed[h.db.Text(`SELECT payload FROM counted WHERE id = $1::bigint`, id[0])] = true
		h.payloads++
		h.db.Exec(`DELETE FROM counted WHERE id = $1::bigint`, id[0])
		h.db.Exec(`INSERT INTO counted (id, payload) VALUES ($1::bigint, $2)`, id[0], fmt.Sprint("p", h.payloads))
	case op == 13: // a sequence that is set back over rows that are gone
		h.db.Exec(`SELECT setval('counted_id_seq', (SELECT coalesce(max(id), 0) + 1 FROM counted), false)`)
	default:
		h.restart()
	}
}

// recover lets everyone be well until nothing waits any more.
func (h *reuse) recover() {
	for _, sub := range h.subs {
		sub.behave(sub.handle)
	}
	h.insert()
	h.relay.shutDown()
	h.start()
	eventually(h.t, "nothing waits, and every row without a dead letter is marked", func() bool {
		return h.db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting'`) == 0 && len(h.unmarked()) == 0
	})
}

// unmarked are the rows that no one is owed, and that are not marked.
func (h *reuse) unmarked() []string {
	return h.db.Texts(`SELECT c.payload FROM counted c WHERE published_at IS NULL AND NOT EXISTS (
		SELECT FROM walpost.owed o WHERE o.state = 'dead' AND o.event_id = c.id::text AND o.payload = c.payload)`)
}

func (h *reuse) check() {
	for _, sub := range h.subs {
		dead := h.db.Texts(`SELECT coalesce(payload, 'gone') FROM walpost.owed WHERE state = 'dead' AND subscriber = $1`, sub.Name())
		gone := 0
		for _, payload := range dead {
			if payload == "gone" {
				gone++
			}
		}
		for _, row := range h.db.Texts(`SELECT payload || CASE WHEN published_at IS NULL THEN '' ELSE '!' END FROM counted`) {
			payload, marked := row, false
			if row[len(row)-1] == '!' {
				payload, marked = row[:len(row)-1], true
			}
			isDead := slices.Contains(dead, payload)
			switch {
			case !sub.has(payload) && !isDead:
				h.t.Errorf("%s has not got %s, and is not owed it", sub.Name(), payload)
			case marked && isDead:
				h.t.Errorf("%s is marked, and %s has a dead letter of it", payload, sub.Name())
			}
		}
		missing := 0
		for payload := range h.removed {
			if !sub.has(payload) && !slices.Contains(dead, payload) {
				missing++
			}
		}
		// What went with its slot was in neither stream nor table.
		if !h.lossy && missing > gone {
			h.t.Errorf("%s lacks %d events whose rows were removed, and only %d are recorded as gone", sub.Name(), missing, gone)
		}
	}
}
