package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// numbered is the delivery of the event with number n.
func numbered(n int) subscriber.Delivery {
	return subscriber.Delivery{Attempt: 1, Event: &event.Event{
		Source: "lessons", ID: fmt.Sprintf("go-1-%02d", n), Type: "lesson.completed", Key: "1", Payload: []byte(`{}`),
	}}
}

// texts runs a query of one text column.
func texts(t *testing.T, db *testdb.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func idsOf(deliveries []subscriber.Delivery) []string {
	var ids []string
	for _, delivery := range deliveries {
		ids = append(ids, delivery.ID)
	}
	return ids
}

// once runs Once and returns the ids that its effect was given; nil when it was not called.
func once(t *testing.T, db *testdb.DB, slot, name string, deliveries []subscriber.Delivery) []string {
	t.Helper()
	var given []string
	err := inbox.Once(t.Context(), db.Pinned, slot, name, deliveries,
		func(_ context.Context, _ pgx.Tx, fresh []subscriber.Delivery) error {
			given = idsOf(fresh)
			return nil
		})
	if err != nil {
		t.Fatalf("Once: %v", err)
	}
	return given
}

func TestOnce_givesFreshEventsInTheirOrderAndEachOnce(t *testing.T) {
	db := testdb.New(t)
	a, b, c := numbered(1), numbered(2), numbered(3)
	if got, want := once(t, db, "s", "n", []subscriber.Delivery{c, a, c}), []string{c.ID, a.ID}; !slices.Equal(got, want) {
		t.Errorf("fresh = %q, want %q", got, want)
	}
	if got, want := once(t, db, "s", "n", []subscriber.Delivery{c, b, a}), []string{b.ID}; !slices.Equal(got, want) {
		t.Errorf("fresh = %q, want %q", got, want)
	}
	if got := once(t, db, "s", "n", []subscriber.Delivery{a, b}); got != nil {
		t.Errorf("effect was called with %q, want no call", got)
	}
}

func TestOnce_keepsSubscribersAndSlotsApart(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{numbered(1)}
	for _, who := range [][2]string{{"s", "n"}, {"s", "m"}, {"r", "n"}} {
		if got, want := once(t, db, who[0], who[1], batch), idsOf(batch); !slices.Equal(got, want) {
			t.Errorf("fresh for %q = %q, want %q", who, got, want)
		}
	}
}

// S-35, S-36: an id is unique within its source, and only at a time.
func TestOnce_keepsSourcesAndOccurrencesApart(t *testing.T) {
	db := testdb.New(t)
	var all []subscriber.Delivery
	for _, source := range []string{"bills", "games"} {
		for _, occurrence := range []string{"then", "now"} {
			d := numbered(1)
			e := *d.Event
			e.Source, e.Occurrence = source, occurrence
			d.Event = &e
			all = append(all, d)
		}
	}
	if got := once(t, db, "s", "n", all[:1]); len(got) != 1 {
		t.Errorf("the first one: %d are fresh, want it", len(got))
	}
	if got := once(t, db, "s", "n", all); len(got) != 3 {
		t.Errorf("all of one id: %d are fresh, want the 3 others", len(got))
	}
	if got := once(t, db, "s", "n", all); got != nil {
		t.Errorf("once more: %d are fresh, want none", len(got))
	}
	// A replay asks for one of them again.
	all[2].Again = time.Now().Add(time.Hour)
	if got := once(t, db, "s", "n", all); len(got) != 1 {
		t.Errorf("after a replay of one: %d are fresh, want 1", len(got))
	}
}

func TestOnce_forgetsTheEventsWhenTheEffectFails(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{numbered(1), numbered(2)}
	broken := errors.New("broken")
	err := inbox.Once(t.Context(), db.Pinned, "s", "n", batch,
		func(ctx context.Context, tx pgx.Tx, _ []subscriber.Delivery) error {
			if _, err := tx.Exec(ctx, `INSERT INTO public.recommendations VALUES (1, 'go', 1)`); err != nil {
				return err
			}
			return broken
		})
	if !errors.Is(err, broken) {
		t.Errorf("Once = %v, want %v", err, broken)
	}
	if got := texts(t, db, `SELECT event_id FROM walpost.inbox UNION ALL SELECT track_slug FROM public.recommendations`); len(got) != 0 {
		t.Errorf("rows after a failed effect = %q, want none", got)
	}
	if got, want := once(t, db, "s", "n", batch), idsOf(batch); !slices.Equal(got, want) {
		t.Errorf("fresh at the next attempt = %q, want %q", got, want)
	}
}

func TestOnce_waitsForTheSameEventInAnotherTransaction(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name    string
		outcome error
		want    []string
	}{
		{"and finds it done after a commit", nil, nil},
		{"and takes it over after a rollback", broken, []string{"go-1-01"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			batch := []subscriber.Delivery{numbered(1)}
			first, second := make(chan error, 1), make(chan error, 1)
			inside, proceed := make(chan struct{}), make(chan struct{})
			go func() {
				first <- inbox.Once(t.Context(), db.Pinned, "s", "n", batch,
					func(context.Context, pgx.Tx, []subscriber.Delivery) error {
						close(inside)
						<-proceed
						return test.outcome
					})
			}()
			<-inside
			var got []string
			go func() {
				second <- inbox.Once(t.Context(), db.Pinned, "s", "n", batch,
					func(_ context.Context, _ pgx.Tx, fresh []subscriber.Delivery) error {
						got = idsOf(fresh)
						return nil
					})
			}()
			for waiting := "0"; waiting == "0"; {
				waiting = texts(t, db, `SELECT count(*)::text FROM pg_stat_activity, pg_sleep(0.005)
					WHERE datname = current_database() AND wait_event_type = 'Lock'`)[0]
			}
			close(proceed)
			if err := <-first; !errors.Is(err, test.outcome) {
				t.Errorf("first Once = %v, want %v", err, test.outcome)
			}
			if err := <-second; err != nil {
				t.Errorf("second Once = %v", err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("fresh for the second = %q, want %q", got, test.want)
			}
		})
	}
}

// again makes deliveries of a replay that was asked for at a moment.
func again(at time.Time, deliveries []subscriber.Delivery) []subscriber.Delivery {
	deliveries = slices.Clone(deliveries)
	for i := range deliveries {
		deliveries[i].Replay, deliveries[i].Again = true, at
	}
	return deliveries
}

func TestOnce_doesAnEffectOnceMoreForEachReplayThatAsksForIt(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{numbered(1), numbered(2)}
	once(t, db, "s", "n", batch)
	once(t, db, "s", "other", batch)
	replayed := slices.Clone(batch)
	replayed[0].Replay = true
	if got := once(t, db, "s", "n", replayed); got != nil {
		t.Errorf("a replay that does not ask for it has the effects of %q", got)
	}
	for round := range 2 {
		asked := serverTime(t, db)
		if got, want := once(t, db, "s", "n", again(asked, batch[:1])), idsOf(batch[:1]); !slices.Equal(got, want) {
			t.Errorf("replay %d: effects of %q, want %q", round, got, want)
		}
		// It broke off and began again; what is live comes with it.
		if got, want := once(t, db, "s", "n", append(again(asked, batch), batch...)), idsOf(batch[1:]); !slices.Equal(got, want) {
			t.Errorf("replay %d, again: effects of %q, want %q", round, got, want)
		}
		if got := once(t, db, "s", "n", again(asked, batch)); got != nil {
			t.Errorf("replay %d, once more: effects of %q, want none", round, got)
		}
	}
	if got := once(t, db, "s", "other", batch); got != nil {
		t.Errorf("another subscriber's effects happened again: %q", got)
	}
}

func TestOnce_doesNotTrustAClockThatWasSetBack(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{numbered(1)}
	asked := serverTime(t, db).Add(time.Hour) // by the clock of another server
	once(t, db, "s", "n", again(asked, batch))
	if got := once(t, db, "s", "n", again(asked, batch)); got != nil {
		t.Errorf("the effect happened twice in one replay: %q", got)
	}
}

func TestOnce_forgetsThatItWasAskedAgainWhenTheEffectFails(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{numbered(1)}
	once(t, db, "s", "n", batch)
	asked := serverTime(t, db)
	broken := errors.New("broken")
	err := inbox.Once(t.Context(), db.Pinned, "s", "n", again(asked, batch),
		func(context.Context, pgx.Tx, []subscriber.Delivery) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("Once = %v, want %v", err, broken)
	}
	if got := once(t, db, "s", "n", batch); got != nil {
		t.Errorf("the record of the first time is gone: effects of %q", got)
	}
	if got, want := once(t, db, "s", "n", again(asked, batch)), idsOf(batch); !slices.Equal(got, want) {
		t.Errorf("effects at the next attempt of %q, want %q", got, want)
	}
}

func serverTime(t *testing.T, db *testdb.DB) time.Time {
	t.Helper()
	var now time.Time
	if err := db.Pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}
