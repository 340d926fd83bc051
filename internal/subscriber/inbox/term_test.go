package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// under gives a delivery the term of a leadership.
func under(term int64, d subscriber.Delivery) subscriber.Delivery {
	d.Term = term
	return d
}

// An effect that is under way holds the leadership: the next leader gives nothing out before it has ended.
func TestOnce_isOverBeforeTheNextLeadershipBegins(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.fence (slot, n, term) SELECT 's', n, 1 FROM generate_series(0, 127) n`)
	db.Exec(`CREATE TABLE effects (id text)`)
	write := func(ctx context.Context, tx pgx.Tx, fresh []subscriber.Delivery) error {
		_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1)`, fresh[0].ID)
		return err
	}
	var took chan int64
	err := inbox.Once(t.Context(), db.Pinned, "s", "n", []subscriber.Delivery{under(1, numbered(1))},
		func(ctx context.Context, tx pgx.Tx, fresh []subscriber.Delivery) error {
			took = make(chan int64, 1)
			go func() { // what Fence.Lead does, and what the new leader sees when it may begin
				db.Exec(`UPDATE walpost.fence SET term = 2 WHERE slot = 's'`)
				took <- db.Int(`SELECT count(*) FROM effects`)
			}()
			for waits := int64(0); waits == 0; {
				waits = db.Int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
			}
			return write(ctx, tx, fresh)
		})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-took; got != 1 {
		t.Errorf("the new leader sees %d effects of the old one, want the one that was under way", got)
	}
	err = inbox.Once(t.Context(), db.Pinned, "s", "n", []subscriber.Delivery{under(1, numbered(2))}, write)
	if !errors.Is(err, subscriber.ErrOldTerm) {
		t.Errorf("after that: %v, want ErrOldTerm", err)
	}
}

func TestOnce_saysThatItsSlotIsNotTheRelays(t *testing.T) {
	db := testdb.New(t)
	err := inbox.Once(t.Context(), db.Pinned, "other", "n", []subscriber.Delivery{under(1, numbered(1))},
		func(context.Context, pgx.Tx, []subscriber.Delivery) error { return nil })
	if err == nil || errors.Is(err, subscriber.ErrOldTerm) {
		t.Errorf("got %v, want an error of its own: no wait for a leader helps", err)
	}
}
