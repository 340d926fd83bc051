package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// rounds is how often a randomised test goes round.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WALPOST_ROUNDS")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("WALPOST_ROUNDS is %q, want a number from 1", text)
	}
	return n
}

// randomness is seeded so that a failure can be seen again.
func randomness(t *testing.T, round int) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("round %d: seed %d", round, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// written is what a storm of writers committed, by event id.
type written struct {
	mu       sync.Mutex
	payloads map[string]string // guarded by mu
}

// storm lets 16 sessions write transactions of 1 to 5 rows that overlap, and returns when all are done.
func storm(t *testing.T, db *testdb.DB, random *rand.Rand, prefix string) (*written, <-chan struct{}) {
	t.Helper()
	const writers, transactions = 16, 30
	pool := openPool(t, db.DSN, writers)
	w := &written{payloads: make(map[string]string)}
	var all sync.WaitGroup
	for i := range writers {
		random := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		all.Go(func() {
			for n := range transactions {
				rows := make(map[string]string)
				err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
					for row := range 1 + random.IntN(5) {
						id := fmt.Sprintf("%s-%d-%d-%d", prefix, i, n, row)
						payload := fmt.Sprintf(`{"n": %d.%d0, "writer": %d}`, random.Uint64(), random.Uint32(), i)
						// The transactions overlap because each takes its time, here and in between.
						_, err := tx.Exec(t.Context(), `
							INSERT INTO public.outbox (event_id, event_type, partition_key, payload)
							SELECT $1, 'lesson.completed', $2, $3::text::jsonb FROM pg_sleep($4)`,
							id, fmt.Sprintf("key-%d", random.IntN(8)), payload, random.Float64()/100)
						if err != nil {
							return err
						}
						rows[id] = payload
					}
					return nil
				})
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				w.mu.Lock()
				for id, payload := range rows {
					w.payloads[id] = payload
				}
				w.mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	return w, done
}

// life is what one relay delivered while it lived.
type life struct {
	delivered []*event.Event
	clean     bool
	confirmed event.LSN // where the slot stood afterwards
}

// F-03: 16 writers whose transactions overlap, a receiver that fails now and then, and relays that are
// stopped and killed at random moments. Nothing is missing, nothing is altered, the order of each key is
// the order of commits, and a clean stop repeats nothing that it confirmed.
func TestRelay_losesAndSwapsNothingUnderStormsAndRestarts(t *testing.T) {
	t.Parallel()
	for round := range rounds(t) {
		db := testdb.New(t)
		random := randomness(t, round)
		streaming(t, options(t, db, subscribertest.Recording())).shutDown()
		w, done := storm(t, db, random, fmt.Sprintf("r%d", round))
		var lives []life
		for writing := true; writing; {
			sub, delivered := moody(random.Uint64())
			r, kill := startMortal(t, db, options(t, db, sub))
			enough := 1 + random.IntN(80)
			eventually(t, "some deliveries", func() bool {
				select {
				case <-done:
					writing = false
					return true
				default:
					return len(delivered()) >= enough
				}
			})
			clean := random.IntN(2) == 0
			if clean {
				r.shutDown()
			} else {
				kill()
			}
			lives = append(lives, life{delivered(), clean, confirmed(t, db)})
		}
		last, delivered := moody(random.Uint64())
		r := streaming(t, options(t, db, last))
		eventually(t, "every row is marked", func() bool { return unmarked(db) == 0 })
		r.shutDown()
		lives = append(lives, life{delivered(), true, confirmed(t, db)})
		if got := stillToCome(db); got != 0 {
			t.Errorf("the server would send %d rows again", got)
		}
		t.Logf("%d events in %d lives", len(w.payloads), len(lives))
		checkLives(t, db, w, lives)
	}
}

// moody fails one attempt in twenty. It returns its successes, in the order in which they were attempted.
func moody(seed uint64) (sub *kept, delivered func() []*event.Event) {
	var mu sync.Mutex
	var taken []*event.Event
	random := rand.New(rand.NewPCG(seed, 1))
	sub = keeping(func(_ context.Context, d subscriber.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(20) == 0 {
			return errors.New("not in the mood")
		}
		taken = append(taken, d.Event)
		return nil
	})
	return sub, func() []*event.Event {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(taken)
	}
}

func checkLives(t *testing.T, db *testdb.DB, w *written, lives []life) {
	t.Helper()
	first := make(map[string]*event.Event)
	lastOfKey := make(map[string]event.Position)
	for n, l := range lives {
		ofThisLife := make(map[string]event.Position)
		for _, ev := range l.delivered {
			if before := ofThisLife[ev.Key]; ev.Position.Compare(before) <= 0 {
				t.Errorf("life %d: %q of key %q at %v was delivered after %v", n, ev.ID, ev.Key, ev.Position, before)
			}
			ofThisLife[ev.Key] = ev.Position
			for m := range n {
				if lives[m].clean && ev.Position.Commit < lives[m].confirmed {
					t.Errorf("life %d: %q at %v came again (in lives %v) although life %d confirmed %v at its end", n, ev.ID, ev.Position, inLives(lives, ev.ID), m, lives[m].confirmed)
				}
			}
			if again := first[ev.ID]; again != nil {
				if again.Position != ev.Position || again.Key != ev.Key || string(again.Payload) != string(ev.Payload) {
					t.Errorf("%q came again as %+v, it was %+v", ev.ID, ev, again)
				}
				continue
			}
			first[ev.ID] = ev
			if before := lastOfKey[ev.Key]; ev.Position.Compare(before) <= 0 {
				t.Errorf("life %d: %q of key %q at %v came for the first time after %v", n, ev.ID, ev.Key, ev.Position, before)
			}
			lastOfKey[ev.Key] = ev.Position
		}
	}
	rows, err := db.Pool.Query(t.Context(), `SELECT event_id, payload::text FROM outbox`)
	if err != nil {
		t.Fatal(err)
	}
	var id, payload string
	n := 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
		n++
		switch ev := first[id]; {
		case ev == nil:
			t.Errorf("%q was committed and never delivered", id)
		case string(ev.Payload) != payload:
			t.Errorf("%q has payload %s, the table says %s", id, ev.Payload, payload)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n != len(w.payloads) || n != len(first) {
		t.Errorf("%d rows in the table, %d written, %d delivered", n, len(w.payloads), len(first))
	}
}

func inLives(lives []life, id string) []string {
	var in []string
	for n, l := range lives {
		for _, ev := range l.delivered {
			if ev.ID == id {
				in = append(in, fmt.Sprintf("%d(clean %v, %v)", n, l.clean, l.confirmed))
			}
		}
	}
	return in
}
