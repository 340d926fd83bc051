package debt_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-181: a pass over the rows that are not published moves them behind everything that waits. Where a marked row waits among
// them, all of them take the order of the table; where none does, nothing moves.
func TestPlaceMarked_bringsWhatWaitsIntoTheOrderOfItsTable(t *testing.T) {
	t.Parallel()
	for name, marked := range map[string][]string{"one is marked": {"e3"}, "none is marked": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			events := fill(t, db, 5)
			store := open(t, db, lessons())
			db.Exec(`UPDATE outbox SET published_at = now() WHERE event_id = ANY ($1)`, marked)
			waiting := []int{2, 4, 0, 3} // by their positions: e3, e5, e1, e4
			for at, n := range waiting {
				events[n].Position, events[n].Bound = event.Position{Epoch: 1, Commit: 800, Ordinal: int64(at)}, 801
				if _, err := store.Record(t.Context(), "sub", []lane.Owed{{Event: events[n]}}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := store.Dead(t.Context(), "sub", lane.Owed{Event: events[1]}); err != nil {
				t.Fatal(err)
			}
			table, err := lessons().Inspect(t.Context(), db.Pinned)
			if err != nil {
				t.Fatal(err)
			}
			var moved int64
			err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
				before, at := event.Position{Epoch: 1, Commit: 801}, event.Position{Epoch: 2, Commit: 900, Ordinal: 7}
				moved, err = store.PlaceMarked(t.Context(), tx, "sub", []*outbox.Table{table}, before, at, 1000)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			page, err := store.Waiting(t.Context(), "sub", lane.Query{Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			var order []string
			for _, o := range page.Owed {
				order = append(order, o.Event.ID)
			}
			want, wantMoved := []string{"e3", "e5", "e1", "e4"}, int64(0)
			if marked != nil {
				want, wantMoved = []string{"e1", "e3", "e4", "e5"}, 4
			}
			if !slices.Equal(order, want) || moved != wantMoved {
				t.Errorf("%d moved, and what waits is %v, want %d and %v", moved, order, wantMoved, want)
			}
			last := page.Owed[3].Event
			if at := (event.Position{Epoch: 2, Commit: 900, Ordinal: 10}); marked != nil && (last.Position != at || last.Bound != 1000) {
				t.Errorf("the last one stands at %v with bound %v, want %v and 1000", last.Position, last.Bound, at)
			}
		})
	}
}
