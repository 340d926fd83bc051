package debt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// Waiting reads waiting deliveries in the order of their positions, whether they are due or not. It
// returns at least one if there is any among those that it examines; otherwise it stops before the events pass
// query.Bytes (0 is no limit), so an answer shorter than query.Limit says nothing about what follows.
//
// It costs what it examines, whatever the number of deliveries, of keys that fail or are blocked, and of deliveries
// already paid, as long as query.After moves on: an index entry of a paid delivery stays until vacuum. Of a key it costs
// one look into an index for each of its deliveries that it passes, and no memory.
//
// It ends before an event whose row is not visible yet, and is an error where that is the first.
func (s *Store) Waiting(ctx context.Context, subscriber string, query lane.Query) (lane.WaitingPage, error) {
	var page lane.WaitingPage
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		page = lane.WaitingPage{}
		rows, err := tx.Query(ctx, waitingSQL, s.slot, subscriber,
			query.After.Epoch, query.After.Commit.String(), query.After.Ordinal, query.Without, max(1, query.Limit), query.Bytes,
			string(query.Order), query.InHand, known(query.Due), s.sources(), query.Examine, query.WithoutBlocked)
		var found []Row
		var last *event.Event // of those that were examined, where fewer were found than the query asks for
		if err == nil {
			found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Row, error) {
				var isLast bool
				r, err := scanRow(row, &isLast)
				if isLast {
					last = r.Event
				}
				return r, err
			})
		}
		if err != nil {
			return fmt.Errorf("read what is owed to %q: %w", subscriber, err)
		}
		found = slices.DeleteFunc(found, func(r Row) bool { return r.Event == last })
		if query.Order == lane.ByKey {
			// After the rows: what people have changed before these were read is seen now.
			var change int64
			if err := tx.QueryRow(ctx, `SELECT `+changeSQL, s.slot).Scan(&change); err != nil {
				return fmt.Errorf("look for changes by people: %w", err)
			}
			if change != query.Change {
				return lane.ErrChanged
			}
		}
		filled, err := s.fill(ctx, tx, found)
		if err == nil && filled == 0 && len(found) > 0 {
			err = fmt.Errorf("event %q: %w", found[0].Event.ID, outbox.ErrNotVisible)
		}
		if err != nil {
			return fmt.Errorf("read what is owed to %q: %w", subscriber, err)
		}
		page.Owed = make([]lane.Owed, filled)
		for i := range page.Owed {
			page.Owed[i] = found[i].Owed
			page.Reached = found[i].Event.Position
		}
		if last != nil && filled == len(found) {
			page.Reached = last.Position
		}
		page.More = len(found) > 0 || last != nil
		return nil
	})
	return page, err
}

// Three steps, each of which takes no more from the one before than it needs: examined is what the read may pass over,
// chosen what it leaves of that, page what fits. Where the choice ends before it has found enough, the last row that was
// examined comes as well, so that the next read goes on behind it. That is one statement, because it has to be one
// snapshot: what another took away meanwhile would shift it.
//
// The keys to leave out are a subquery, because that is hashed: with thousands of them an array would be
// searched from its start for each row.
//
// Only the first waiting delivery of a key can have failed, and owed_failing has nothing else: it is the
// memory of keys that were set aside, whatever their number. Epoch + 0 keeps the planner from reading along
// owed_waiting instead, which can look as good to it and would pass the whole debt for each row.
const waitingSQL = `
	WITH chosen AS MATERIALIZED (
		SELECT o.*, row_number() OVER w AS nr, sum(o.size) OVER w AS bytes FROM (
			SELECT * FROM (` + examined + ` LIMIT nullif($13::int, 0)) d
			WHERE (copied OR source = ANY ($12::text[]))
			AND key NOT IN (SELECT unnest($6::text[]))
			AND CASE $9::text
				WHEN 'none' THEN coalesce(next_attempt <= $11::timestamptz, true)
				WHEN 'key' THEN NOT EXISTS (
					SELECT FROM walpost.owed f
					WHERE f.slot = $1 AND f.subscriber = $2 AND f.key = d.key AND ` + failing + `
					AND (f.epoch + 0, f.commit_lsn, f.ordinal) <= (d.epoch, d.commit_lsn, d.ordinal)
					AND (f.next_attempt > $11::timestamptz
					     OR (f.epoch + 0, f.commit_lsn, f.ordinal) <= ($3::int, $4::text::pg_lsn, $5::bigint)
					        AND f.key NOT IN (SELECT unnest($10::text[]))))
				ELSE true END
			AND ($14::bool IS NOT TRUE OR NOT EXISTS (
				SELECT FROM walpost.owed b
				WHERE b.slot = $1 AND b.subscriber = $2 AND b.key = d.key AND b.state NOT IN ('waiting', 'paid')))
			ORDER BY epoch, commit_lsn, ordinal LIMIT $7
		) o WINDOW w AS (ORDER BY o.epoch, o.commit_lsn, o.ordinal ROWS UNBOUNDED PRECEDING)
	), page AS (
		SELECT * FROM chosen WHERE nr = 1 OR $8::bigint <= 0 OR bytes <= $8
	)
	SELECT ` + rowColumns + bodyColumns + `, false FROM page o
	UNION ALL
	(SELECT ` + rowColumns + noBodies + `, true FROM (` + examined + ` OFFSET greatest($13::int, 1) - 1 LIMIT 1) o
	WHERE $13::int > 0 AND (SELECT count(*) < $7 AND count(*) = (SELECT count(*) FROM page) FROM chosen))`

// examined is what waits behind a position, in its order, whether it is left out or not.
const examined = `
	SELECT * FROM walpost.owed w
	WHERE w.slot = $1 AND w.subscriber = $2 AND w.state = 'waiting'
	AND (w.epoch, w.commit_lsn, w.ordinal) > ($3::int, $4::text::pg_lsn, $5::bigint)
	ORDER BY w.epoch, w.commit_lsn, w.ordinal`

// failing is the condition of the index owed_failing, of a table named f. "NOT IN" and not "= 'waiting'",
// which would offer the index of all that wait.
const failing = `f.first_failure IS NOT NULL AND f.state NOT IN ('dead', 'paid')`

// sampleFront is how many waiting deliveries Sample looks at.
const sampleFront = 20_000

// Sample returns the first waiting delivery of a key, picked at random among the keys that are due in the
// first 20,000 deliveries of the debt.
func (s *Store) Sample(ctx context.Context, subscriber string, order lane.Ordering, pick float64) ([]lane.Owed, error) {
	var owed []lane.Owed
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		found, err := collect(tx.Query(ctx, `
			WITH front AS MATERIALIZED (
				SELECT source, event_id, occurrence, key, next_attempt, row_number() OVER () AS nr FROM (
					SELECT source, event_id, occurrence, key, next_attempt FROM walpost.owed
					WHERE slot = $1 AND subscriber = $2 AND state = 'waiting' AND (copied OR source = ANY ($6::text[]))
					ORDER BY epoch, commit_lsn, ordinal LIMIT $3) o
			), heads AS MATERIALIZED (
				SELECT * FROM (
					SELECT DISTINCT ON (CASE WHEN $4 THEN key ELSE nr::text END) * FROM front
					ORDER BY CASE WHEN $4 THEN key ELSE nr::text END, nr) first
				WHERE coalesce(next_attempt <= now(), true)
			)
			SELECT `+rowColumns+bodyColumns+`
			FROM (SELECT * FROM heads OFFSET (SELECT floor($5::float8 * count(*))::bigint FROM heads) LIMIT 1) head
			CROSS JOIN LATERAL (
				SELECT * FROM walpost.owed
				WHERE slot = $1 AND event_id = head.event_id AND source = head.source AND occurrence = head.occurrence
				AND subscriber = $2 LIMIT 1) o`,
			s.slot, subscriber, sampleFront, order == lane.ByKey, pick, s.sources()))
		if err != nil {
			return fmt.Errorf("pick one of what is owed to %q: %w", subscriber, err)
		}
		filled, err := s.fill(ctx, tx, found)
		if err != nil {
			return fmt.Errorf("pick one of what is owed to %q: %w", subscriber, err)
		}
		owed = make([]lane.Owed, filled)
		for i := range owed {
			owed[i] = found[i].Owed
		}
		return nil
	})
	return owed, err
}

// Known returns what is recorded of those of the events that are recorded, by index.
func (s *Store) Known(ctx context.Context, subscriber string, events []*event.Event) (map[int]lane.Recorded, error) {
	known := make(map[int]lane.Recorded)
	if len(events) == 0 {
		return known, nil
	}
	var c columns
	for _, e := range events {
		c.add(&lane.Owed{Event: e})
	}
	rows, err := s.pool.Query(ctx, `
		SELECT a.n - 1, o.state, o.made_up AND NOT o.in_table_order, `+otherRow("o", "a")+`
		FROM unnest($3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bigint[], $9::bool[], $10::text[])
		WITH ORDINALITY AS a(source, event_id, occurrence, epoch, commit_lsn, ordinal, made_up, row_id, n)
		CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
			SELECT state, row_id, epoch, commit_lsn, ordinal, made_up, in_table_order FROM walpost.owed
			WHERE slot = $1 AND event_id = a.event_id AND source = a.source AND occurrence = a.occurrence AND subscriber = $2 LIMIT 1) o`,
		s.slot, subscriber, c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.rows)
	if err != nil {
		return nil, fmt.Errorf("look up %s owed to %q: %w", printable.Count(len(events), "event"), subscriber, err)
	}
	var n int
	var recorded lane.Recorded
	_, err = pgx.ForEachRow(rows, []any{&n, &recorded.State, &recorded.MadeUp, &recorded.Other}, func() error {
		known[n] = recorded
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up %s owed to %q: %w", printable.Count(len(events), "event"), subscriber, err)
	}
	return known, nil
}

// FindMarked returns, in order, the indexes of those of the events whose rows are marked as published.
func (s *Store) FindMarked(ctx context.Context, events []*event.Event) (marked []int, err error) {
	tables := s.current()
	asked := make(map[*outbox.Table][]int)
	for i, e := range events {
		if table := tables[e.Source]; e.Row != "" && table != nil && table.Marks() {
			asked[table] = append(asked[table], i)
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		marked = nil
		for table, indexes := range asked {
			rows := make([]*event.Event, len(indexes))
			for n, i := range indexes {
				rows[n] = events[i]
			}
			published, err := table.FindPublished(ctx, tx, rows)
			if err != nil {
				return err
			}
			for _, n := range published {
				marked = append(marked, indexes[n])
			}
		}
		return nil
	})
	slices.Sort(marked)
	return marked, err
}

// Commits returns, by index, up to where those of the events committed of which walpost.owed has a position of the
// epoch, for whichever subscriber: at a real position, or before the bound of a made-up one.
func (s *Store) Commits(ctx context.Context, tx pgx.Tx, epoch int32, events []*event.Event) (map[int]event.Position, error) {
	commits := make(map[int]event.Position)
	if len(events) == 0 {
		return commits, nil
	}
	sources, ids, occurrences := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		sources[i], ids[i], occurrences[i] = e.Source, e.ID, e.Occurrence
	}
	rows, err := tx.Query(ctx, `
		SELECT a.n - 1, o.commit_lsn::text, o.ordinal FROM unnest($3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS a(source, event_id, occurrence, n)
		CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
			SELECT CASE WHEN made_up THEN bound ELSE commit_lsn END AS commit_lsn, CASE WHEN made_up THEN 0 ELSE ordinal END AS ordinal
			FROM walpost.owed
			WHERE slot = $1 AND event_id = a.event_id AND source = a.source AND occurrence = a.occurrence
			AND epoch = $2 ORDER BY made_up, bound LIMIT 1) o`,
		s.slot, epoch, sources, ids, occurrences)
	if err != nil {
		return nil, fmt.Errorf("look up where %s committed: %w", printable.Count(len(events), "event"), err)
	}
	var n int
	var commit string
	at := event.Position{Epoch: epoch}
	_, err = pgx.ForEachRow(rows, []any{&n, &commit, &at.Ordinal}, func() (err error) {
		at.Commit, err = event.ParseLSN(commit)
		commits[n] = at
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up where %s committed: %w", printable.Count(len(events), "event"), err)
	}
	return commits, nil
}

// Load tells what is owed to a subscriber at the start. It costs no more than the limit, whatever the debt.
func (s *Store) Load(ctx context.Context, subscriber string, secured event.Position, limit lane.Limit) (lane.Debt, error) {
	var debt lane.Debt
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		epoch, err := store.SlotEpoch(ctx, tx, s.slot)
		if err != nil {
			return err
		}
		var bound string
		err = tx.QueryRow(ctx, loadSQL,
			s.slot, subscriber, secured.Epoch, secured.Commit.String(), epoch, secured.Ordinal).Scan(&debt.Change, &debt.Paused, &debt.Beyond, &bound)
		if err != nil {
			return err
		}
		if debt.Bound, err = event.ParseLSN(bound); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT key, count(*) FILTER (WHERE NOT extra), coalesce(max(bound) FILTER (WHERE `+ahead+`), '0/0')::text, bool_or(extra) FROM (
				SELECT *, row_number() OVER () > $8 AS extra FROM (
					SELECT * FROM walpost.owed
					WHERE slot = $1 AND subscriber = $2 AND state = 'waiting'
					ORDER BY epoch, commit_lsn, ordinal LIMIT $8::bigint + 1) w) o
			WHERE copied OR source = ANY ($7::text[]) OR extra GROUP BY key LIMIT $6`,
			s.slot, subscriber, secured.Epoch, secured.Commit.String(), epoch, int64(limit.Keys)+1, s.sources(), int64(limit.Rows))
		if err != nil {
			return err
		}
		keys, bounds := make(map[string]int), make(map[string]event.LSN)
		var key string
		var number int
		var extra bool
		if _, err = pgx.ForEachRow(rows, []any{&key, &number, &bound, &extra}, func() error {
			keys[key] = number
			lsn, err := event.ParseLSN(bound)
			if lsn > 0 {
				bounds[key] = lsn
			}
			debt.More = debt.More || extra
			return err
		}); err != nil {
			return err
		}
		if debt.More = debt.More || len(keys) > limit.Keys; !debt.More {
			debt.Keys, debt.Bounds = keys, bounds
		}
		return nil
	})
	if err != nil {
		return lane.Debt{}, fmt.Errorf("look up the debt of %q: %w", subscriber, err)
	}
	return debt, nil
}

// Count counts, by key, the first limit.Rows of the waiting deliveries behind a position, and at most limit.Keys keys
// and one.
func (s *Store) Count(ctx context.Context, subscriber string, after event.Position, limit lane.Limit) (lane.Counted, error) {
	counted := lane.Counted{Keys: make(map[string]int), Reached: after}
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT `+changeSQL, s.slot).Scan(&counted.Change); err != nil {
			return err
		}
		// The last one that is counted, if there are so many.
		var commit string
		err := tx.QueryRow(ctx, `
			SELECT w.epoch, w.commit_lsn::text, w.ordinal FROM (`+examined+` OFFSET greatest($6::bigint, 1) - 1 LIMIT 1) w`,
			s.slot, subscriber, after.Epoch, after.Commit.String(), after.Ordinal, int64(limit.Rows)).
			Scan(&counted.Reached.Epoch, &commit, &counted.Reached.Ordinal)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			counted.Reached = event.Position{Epoch: math.MaxInt32}
		case err != nil:
			return err
		default:
			counted.More = true
			if counted.Reached.Commit, err = event.ParseLSN(commit); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `
			SELECT key, count(*) FROM (`+examined+`) w
			WHERE (w.epoch, w.commit_lsn, w.ordinal) <= ($6::int, $7::text::pg_lsn, $8::bigint) AND (copied OR source = ANY ($9::text[]))
			GROUP BY key LIMIT $10`,
			s.slot, subscriber, after.Epoch, after.Commit.String(), after.Ordinal,
			counted.Reached.Epoch, counted.Reached.Commit.String(), counted.Reached.Ordinal, s.sources(), int64(limit.Keys)+1)
		if err != nil {
			return err
		}
		var key string
		var number int
		_, err = pgx.ForEachRow(rows, []any{&key, &number}, func() error {
			counted.Keys[key] = number
			return nil
		})
		return err
	})
	if err != nil {
		return lane.Counted{}, fmt.Errorf("count what is owed to %q: %w", subscriber, err)
	}
	return counted, nil
}

// Blocked returns the keys that have a dead letter, or of more than limit of them limit and one. It looks each of them up
// in owed_dead_key, so that it does not read the dead letters.
func (s *Store) Blocked(ctx context.Context, subscriber string, limit int) ([]string, error) {
	rows, err := s.pool.Query(ctx, blockedSQL, s.slot, subscriber, int64(limit)+1)
	if err != nil {
		return nil, fmt.Errorf("look up the dead letters of %q: %w", subscriber, err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look up the dead letters of %q: %w", subscriber, err)
	}
	return keys, nil
}

// blockedSQL steps from one key to the next. (https://wiki.postgresql.org/wiki/Loose_indexscan)
const blockedSQL = `
	WITH RECURSIVE blocked AS (
		(SELECT key FROM walpost.owed WHERE slot = $1 AND subscriber = $2 AND state NOT IN ('waiting', 'paid') ORDER BY key LIMIT 1)
		UNION ALL
		SELECT n.key FROM blocked b CROSS JOIN LATERAL (
			SELECT o.key FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = $2 AND o.state NOT IN ('waiting', 'paid') AND o.key > b.key
			ORDER BY o.key LIMIT 1) n
	) SELECT key FROM blocked LIMIT $3`

// loadSQL is what Load learns of the whole debt, by a look into an index for each answer.
var loadSQL = `
	SELECT ` + changeSQL + `, ` + pausedSQL + `,
	       ` + beyondSQL(lane.StateWaiting) + ` OR ` + beyondSQL(lane.StateDead) + ` OR ` + madeUpBeyondSQL + ` OR ` + paidBeyondSQL("mark") + ` OR ` + paidBeyondSQL("NOT mark") + `,
	       greatest(` + madeUpBoundSQL + `, ` + paidBoundSQL("mark") + `, ` + paidBoundSQL("NOT mark") + `, '0/0')::text`

// changeSQL is the number of the last change by people at slot $1.
var changeSQL = store.LastChangeSQL("$1")

// pausedSQL tells whether subscriber $2 of slot $1 is paused.
var pausedSQL = store.PausedSQL("$1", "$2")

// beyondSQL and madeUpBeyondSQL tell whether the stream may still bring a row of that state to a subscriber that is
// secured up to the position in $3, $4 and $6: the row stands beyond it, or it was read from its table and may have
// committed beyond it. Each has an index.
func beyondSQL(state lane.State) string {
	return `EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND subscriber = $2 AND state = '` + string(state) + `'
		AND (epoch, commit_lsn, ordinal) > ($3::int, $4::text::pg_lsn, $6::bigint))`
}

const madeUpBeyondSQL = `EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND subscriber = $2 AND made_up AND state NOT IN ('paid')
	AND (epoch, bound) > ($3::int, $4::text::pg_lsn))`

// ahead is true of a delivery, named o, at a made-up position whose event may have committed beyond the position in $3
// and $4, in the slot's epoch $5. A bound of an earlier epoch has been passed.
const ahead = `o.made_up AND (o.epoch, o.bound) > ($3::int, $4::text::pg_lsn) AND o.epoch = $5::int`

// madeUpBoundSQL is the highest bound of what is ahead and not paid.
const madeUpBoundSQL = `(SELECT o.bound FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = $2 AND o.state NOT IN ('paid')
	AND ` + ahead + ` ORDER BY o.epoch DESC, o.bound DESC LIMIT 1)`

// paidBeyondSQL is beyondSQL for what is paid, which has an index in the order of the bounds: a position is never beyond
// its bound. mark tells apart what is still to be marked.
func paidBeyondSQL(mark string) string {
	return `EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND subscriber = $2 AND state = 'paid' AND ` + mark + `
		AND (epoch, bound) >= ($3::int, $4::text::pg_lsn)
		AND ((epoch, commit_lsn, ordinal) > ($3::int, $4::text::pg_lsn, $6::bigint) OR made_up AND (epoch, bound) > ($3::int, $4::text::pg_lsn)))`
}

// paidBoundSQL is boundSQL for what is paid. It looks from the highest bound on.
func paidBoundSQL(mark string) string {
	return `(SELECT o.bound FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = $2 AND o.state = 'paid' AND ` + mark + `
		AND ` + ahead + ` ORDER BY o.bound DESC LIMIT 1)`
}

// Changes tells what people have changed, and how far the debt reaches back. Of an event whose commit time
// the server does not know, OldestAt is when it was recorded.
func (s *Store) Changes(ctx context.Context, subscriber string) (lane.Changes, error) {
	var (
		look    lane.Changes
		epoch   *int32
		commit  *string
		ordinal *int64
		at      *time.Time
	)
	err := s.pool.QueryRow(ctx, `
		SELECT `+pausedSQL+`, `+changeSQL+`,
		       o.epoch, o.commit_lsn::text, o.ordinal, o.at FROM (VALUES (1)) one LEFT JOIN LATERAL (
			SELECT epoch, commit_lsn, ordinal, coalesce(committed_at, recorded_at) AS at FROM walpost.owed
			WHERE slot = $1 AND subscriber = $2 AND state = 'waiting' AND (copied OR source = ANY ($3::text[]))
			ORDER BY epoch, commit_lsn, ordinal LIMIT 1) o ON true`,
		s.slot, subscriber, s.sources()).Scan(&look.Paused, &look.Change, &epoch, &commit, &ordinal, &at)
	if err == nil && epoch != nil {
		look.Any, look.OldestAt = true, or(at)
		look.Oldest.Epoch, look.Oldest.Ordinal = *epoch, *ordinal
		look.Oldest.Commit, err = event.ParseLSN(*commit)
	}
	if err == nil && look.Any {
		look.Holds, err = s.holds(ctx, subscriber)
	}
	if err != nil {
		return lane.Changes{}, fmt.Errorf("look for the debt of %q: %w", subscriber, err)
	}
	return look, nil
}

// HeldSince is when the oldest event committed that waits for one of the subscribers and is not below what is recorded as
// confirmed; zero when there is none.
func (s *Store) HeldSince(ctx context.Context, subscribers []string) (time.Time, error) {
	slot, err := store.ReadSlotRecord(ctx, s.pool, s.slot)
	if err != nil || slot == nil {
		return time.Time{}, err
	}
	var micros *int64 // since 1970
	err = s.pool.QueryRow(ctx, `
		SELECT min(extract(epoch FROM o.committed_at) * 1000000)::bigint
		FROM unnest($2::text[]) AS a(subscriber) CROSS JOIN LATERAL (
			SELECT coalesce(o.committed_at, o.recorded_at) AS committed_at FROM walpost.owed o
			WHERE o.slot = $1 AND o.subscriber = a.subscriber AND o.state = 'waiting' AND (o.epoch, o.commit_lsn, o.ordinal) >= ($3::int, $4::text::pg_lsn, 0)
			ORDER BY o.epoch, o.commit_lsn, o.ordinal LIMIT 1) o`,
		s.slot, subscribers, slot.Epoch, slot.Confirmed.String()).Scan(&micros)
	if err != nil {
		return time.Time{}, fmt.Errorf("look since when a debt holds WAL: %w", err)
	}
	if micros == nil {
		return time.Time{}, nil
	}
	return time.UnixMicro(*micros), nil
}

// holds is the position of the oldest waiting delivery that is not below what is recorded as confirmed, nil for none.
func (s *Store) holds(ctx context.Context, subscriber string) (*event.Position, error) {
	var at event.Position
	var confirmed event.LSN
	slot, err := store.ReadSlotRecord(ctx, s.pool, s.slot)
	switch {
	case err != nil:
		return nil, err
	case slot != nil:
		at.Epoch, confirmed = slot.Epoch, slot.Confirmed
	}
	var commit string
	err = s.pool.QueryRow(ctx, `
		SELECT epoch, commit_lsn::text, ordinal FROM walpost.owed
		WHERE slot = $1 AND subscriber = $2 AND state = 'waiting' AND (epoch, commit_lsn, ordinal) >= ($3::int, $4::text::pg_lsn, 0)
		AND (copied OR source = ANY ($5::text[]))
		ORDER BY owed.epoch, owed.commit_lsn, owed.ordinal LIMIT 1`, s.slot, subscriber, at.Epoch, confirmed.String(), s.sources()).Scan(&at.Epoch, &commit, &at.Ordinal)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	at.Commit, err = event.ParseLSN(commit)
	return &at, err
}
