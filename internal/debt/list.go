package debt

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
)

// List returns deliveries in the order in which they are sent, without payload and headers; of those that
// are owed by reference it tells only what is recorded.
func (s *Store) List(ctx context.Context, filter Filter) ([]Row, error) {
	where, args := filter.where(s.slot)
	sql := "SELECT " + rowColumns + noBodies + " FROM walpost.owed o WHERE " + where +
		" ORDER BY o.subscriber, o.epoch, o.commit_lsn, o.ordinal"
	if filter.Limit > 0 {
		sql += " LIMIT " + strconv.Itoa(filter.Limit)
	}
	rows, err := collect(s.pool.Query(ctx, sql, args...))
	if err != nil {
		return nil, fmt.Errorf("list owed deliveries: %w", err)
	}
	return rows, nil
}

// A Place is where a delivery stands in the order of a Page. As JSON it is what a reader hands back for the next one.
type Place struct {
	Subscriber string `json:"s"`
	Epoch      int32  `json:"p"`
	Commit     string `json:"c"` // an LSN as Postgres writes it
	Ordinal    int64  `json:"n"`
	Event      string `json:"e"`
	Source     string `json:"f"`
	Occurrence string `json:"o"`
}

// PlaceOf is where a row stands.
func PlaceOf(r Row) Place {
	e := r.Event
	return Place{r.Subscriber, e.Position.Epoch, e.Position.Commit.String(), e.Position.Ordinal, e.ID, e.Source, e.Occurrence}
}

// placeOrder is the order of pages: that in which deliveries are sent, and the rest of the primary key, so that no two
// stand at the same place.
const placeOrder = "o.subscriber, o.epoch, o.commit_lsn, o.ordinal, o.event_id, o.source, o.occurrence"

// Page is List from behind a place, nil for the beginning, at most limit rows. A reader that goes on behind the last row of
// each page sees every delivery that is owed from the first page to the last once, whatever is recorded or paid meanwhile.
// It costs what it returns: each state has an index in this order.
func (s *Store) Page(ctx context.Context, filter Filter, after *Place, limit int) ([]Row, error) {
	states := []lane.State{filter.State}
	if filter.State == "" {
		states = []lane.State{lane.StateWaiting, lane.StateDead}
	}
	var args []any
	var parts []string
	for _, state := range states {
		filter.State = state
		var where string
		where, args = filter.where(s.slot) // a state is written out, so both have the same arguments
		if after != nil {
			n := len(args)
			where += fmt.Sprintf(" AND ("+placeOrder+") > ($%d, $%d, $%d::text::pg_lsn, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5, n+6, n+7)
			args = append(args, after.Subscriber, after.Epoch, after.Commit, after.Ordinal, after.Event, after.Source, after.Occurrence)
		}
		parts = append(parts, "(SELECT o.* FROM walpost.owed o WHERE "+where+" ORDER BY "+placeOrder+" LIMIT "+strconv.Itoa(limit)+")")
	}
	rows, err := collect(s.pool.Query(ctx, "SELECT "+rowColumns+noBodies+" FROM ("+strings.Join(parts, " UNION ALL ")+") o ORDER BY "+placeOrder+
		" LIMIT "+strconv.Itoa(limit), args...))
	if err != nil {
		return nil, fmt.Errorf("list owed deliveries: %w", err)
	}
	return rows, nil
}

// Show returns everything about an event that is owed: a row for each subscriber and source, with payload
// and headers.
func (s *Store) Show(ctx context.Context, eventID string) ([]Row, error) {
	var rows []Row
	err := s.inTx(ctx, func(tx pgx.Tx) (err error) {
		where, args := Filter{Events: []string{eventID}}.where(s.slot)
		rows, err = collect(tx.Query(ctx, "SELECT "+rowColumns+bodyColumns+" FROM walpost.owed o WHERE "+where+" ORDER BY o.source, o.occurrence, o.subscriber", args...))
		if err != nil {
			return err
		}
		_, err = s.fill(ctx, tx, rows) // one that is not visible yet is shown without what only its row has
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("show owed event %q: %w", eventID, err)
	}
	return rows, nil
}

// Fitting counts what the filter chooses, by subscriber and state, whatever its limit, and returns the
// server's clock at that moment: with it as Until the same filter chooses nothing that came later.
func (s *Store) Fitting(ctx context.Context, filter Filter) (counts []Count, at time.Time, err error) {
	where, args := filter.where(s.slot)
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&at); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT o.subscriber, o.state, count(*) FROM walpost.owed o WHERE "+where+" GROUP BY 1, 2 ORDER BY 1, 2", args...)
		if err != nil {
			return err
		}
		counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Count])
		return err
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("count owed deliveries: %w", err)
	}
	return counts, at.UTC(), nil
}
