package subscriber_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

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
	err := subscriber.Once(t.Context(), db.Pool, slot, name, deliveries,
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
	a, b, c := lessonOf(1, "go", 1), lessonOf(1, "go", 2), lessonOf(1, "go", 3)
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
	batch := []subscriber.Delivery{lessonOf(1, "go", 1)}
	for _, who := range [][2]string{{"s", "n"}, {"s", "m"}, {"r", "n"}} {
		if got, want := once(t, db, who[0], who[1], batch), idsOf(batch); !slices.Equal(got, want) {
			t.Errorf("fresh for %q = %q, want %q", who, got, want)
		}
	}
}

func TestOnce_forgetsTheEventsWhenTheEffectFails(t *testing.T) {
	db := testdb.New(t)
	batch := []subscriber.Delivery{lessonOf(1, "go", 1), lessonOf(1, "go", 2)}
	broken := errors.New("broken")
	err := subscriber.Once(t.Context(), db.Pool, "s", "n", batch,
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
			batch := []subscriber.Delivery{lessonOf(1, "go", 1)}
			first, second := make(chan error, 1), make(chan error, 1)
			inside, proceed := make(chan struct{}), make(chan struct{})
			go func() {
				first <- subscriber.Once(t.Context(), db.Pool, "s", "n", batch,
					func(context.Context, pgx.Tx, []subscriber.Delivery) error {
						close(inside)
						<-proceed
						return test.outcome
					})
			}()
			<-inside
			var got []string
			go func() {
				second <- subscriber.Once(t.Context(), db.Pool, "s", "n", batch,
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
