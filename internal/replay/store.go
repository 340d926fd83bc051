package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// Store is the replays of one slot. It is safe for concurrent use, also by other processes.
type Store struct {
	pool     *postgres.Pool
	slot     string
	tables   []*outbox.Table
	messages []string
}

// NewStore returns the replays of a slot. tables are those of its sources, messages the names of the sources
// that have none; who only follows or cancels replays needs neither.
func NewStore(pool *postgres.Pool, slot string, tables []*outbox.Table, messages []string) *Store {
	return &Store{pool, slot, tables, messages}
}

// Create makes a replay that the leader will act on. Rows that come after this moment are not part of it.
// estimated is the number of rows of an estimate.
func (s *Store) Create(ctx context.Context, request Request, estimated int64, who, why string) (Replay, error) {
	if err := request.Check(); err != nil {
		return Replay{}, err
	}
	tables, err := s.chosenTables(request)
	if err != nil {
		return Replay{}, err
	}
	var asked Replay
	err = postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.checkSubscriber(ctx, tx, request.Subscriber); err != nil {
			return err
		}
		bounds := make(map[string]outbox.Place)
		for _, table := range tables {
			last, err := table.Last(ctx, tx)
			if err != nil {
				return err
			}
			if last != nil {
				bounds[table.Source.Name] = last
			}
		}
		text, err := encode(bounds)
		if err != nil {
			return err
		}
		asked, err = one(tx.Query(ctx, `
			INSERT INTO walpost.replays AS r (slot, subscriber, since, until, key, event_type, source, again, rate, who, estimated, bounds)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb) RETURNING `+columns,
			s.slot, request.Subscriber, known(request.Since), known(request.Until), request.Key, request.Type, request.Source,
			request.Again, request.Rate, who, estimated, text))
		if err != nil {
			return err
		}
		_, err = store.Audit(ctx, tx, s.slot, who, "replay", map[string]any{"replay": asked.ID, "request": request, "rows": estimated}, why)
		return err
	})
	if err != nil {
		return Replay{}, fmt.Errorf("ask for a replay to %q: %w", request.Subscriber, err)
	}
	store.Announce(ctx, s.pool, s.slot)
	return asked, nil
}

// checkSubscriber returns an error if no subscriber of that name can be sent anything.
func (s *Store) checkSubscriber(ctx context.Context, tx pgx.Tx, name string) error {
	configured, err := store.IsConfigured(ctx, tx, s.slot, name)
	if err == nil && !configured {
		err = debt.Refused(fmt.Sprintf("subscriber %q has left the configuration: no relay would send it anything", name))
	}
	return err
}

// List returns the newest replays, the newest first.
func (s *Store) List(ctx context.Context, limit int) ([]Replay, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+columns+` FROM walpost.replays r WHERE slot = $1 ORDER BY id DESC LIMIT $2`, s.slot, limit)
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	replays, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	return replays, nil
}

// Get returns one replay, or ErrNoReplay.
func (s *Store) Get(ctx context.Context, id int64) (Replay, error) {
	replay, err := one(s.pool.Query(ctx, `SELECT `+columns+` FROM walpost.replays r WHERE slot = $1 AND id = $2`, s.slot, id))
	if errors.Is(err, pgx.ErrNoRows) {
		err = noReplay(id)
	}
	if err != nil {
		return Replay{}, fmt.Errorf("look up replay %d: %w", id, err)
	}
	return replay, nil
}

// Cancel ends a replay; a relay that runs stops it within two seconds. One that is over is an ErrOver.
func (s *Store) Cancel(ctx context.Context, id int64, who, why string) (Replay, error) {
	var replay Replay
	err := postgres.InTx(ctx, s.pool, func(tx pgx.Tx) (err error) {
		replay, err = one(tx.Query(ctx, `SELECT `+columns+` FROM walpost.replays r WHERE slot = $1 AND id = $2 FOR UPDATE`, s.slot, id))
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return noReplay(id)
		case err != nil:
			return err
		case !replay.State.Open():
			return fmt.Errorf("%w: it is %s since %s", ErrOver, replay.State, replay.EndedAt.Format(time.RFC3339))
		}
		replay, err = one(tx.Query(ctx, `
			UPDATE walpost.replays r SET state = 'cancelled', problem = '', ended_at = now(), updated_at = now()
			WHERE slot = $1 AND id = $2 RETURNING `+columns, s.slot, id))
		if err != nil {
			return err
		}
		_, err = store.Audit(ctx, tx, s.slot, who, "cancel replay", map[string]any{"replay": id, "subscriber": replay.Subscriber}, why)
		return err
	})
	if err != nil {
		return Replay{}, fmt.Errorf("cancel replay %d: %w", id, err)
	}
	store.Announce(ctx, s.pool, s.slot)
	return replay, nil
}

// CancelAll ends the replays to a subscriber that is forgotten.
func (s *Store) CancelAll(ctx context.Context, subscriber string) error {
	_, err := s.pool.Exec(ctx, `
		UPDATE walpost.replays SET state = 'cancelled', problem = '', ended_at = now(), updated_at = now()
		WHERE slot = $1 AND subscriber = $2 AND state IN ('waiting', 'running')`, s.slot, subscriber)
	if err != nil {
		return fmt.Errorf("cancel the replays to %q: %w", subscriber, err)
	}
	return nil
}

func noReplay(id int64) error {
	return fmt.Errorf("%w %d at this slot: `walpost replay list` shows them", ErrNoReplay, id)
}

// columns of a Replay, of a table named r.
const columns = `r.id, r.state, r.subscriber, r.since, r.until, r.key, r.event_type, r.source, r.again, r.rate, r.who,
	r.asked_at, r.started_at, r.ended_at, r.updated_at, r.estimated, r.bounds::text,
	r.delivered, r.dead, r.owed, r.unwanted, r.invalid, r.named::text, r.at_source, r.at_row::text, r.problem`

func scan(row pgx.CollectableRow) (Replay, error) {
	var r Replay
	var since, until, started, ended *time.Time
	var bounds, named string
	var at *string
	err := row.Scan(&r.ID, &r.State, &r.Subscriber, &since, &until, &r.Key, &r.Type, &r.Source, &r.Again, &r.Rate, &r.Who,
		&r.AskedAt, &started, &ended, &r.UpdatedAt, &r.Estimated, &bounds,
		&r.Delivered, &r.Dead, &r.Owed, &r.Unwanted, &r.Invalid, &named, &r.AtSource, &at, &r.Problem)
	if err != nil {
		return r, err
	}
	r.Since, r.Until, r.StartedAt, r.EndedAt = or(since), or(until), or(started), or(ended)
	r.AskedAt, r.UpdatedAt = r.AskedAt.UTC(), r.UpdatedAt.UTC()
	err = errors.Join(json.Unmarshal([]byte(bounds), &r.bounds), json.Unmarshal([]byte(named), &r.Named))
	if at != nil {
		err = errors.Join(err, json.Unmarshal([]byte(*at), &r.At))
	}
	return r, err
}

func one(rows pgx.Rows, err error) (Replay, error) {
	if err != nil {
		return Replay{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scan)
}

// known turns the zero time into NULL, or the opposite.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func or(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Rename gives the replays of a subscriber to another name.
func Rename(ctx context.Context, tx pgx.Tx, slot, before, name string) error {
	if _, err := tx.Exec(ctx, `UPDATE walpost.replays SET subscriber = $3 WHERE slot = $1 AND subscriber = $2`, slot, before, name); err != nil {
		return fmt.Errorf("rename the replays of %q: %w", before, err)
	}
	return nil
}

// RenameSources gives sources other names in replays, by their former names.
func RenameSources(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
	names, err := encode(renamed)
	if err == nil {
		_, err = tx.Exec(ctx, `
			UPDATE walpost.replays SET bounds = coalesce((
				SELECT pg_catalog.jsonb_object_agg(coalesce($2::text::jsonb->>b.key, b.key), b.value) FROM pg_catalog.jsonb_each(bounds) b), '{}')
			WHERE slot = $1`, slot, names)
	}
	if err != nil {
		return fmt.Errorf("rename sources in replays: %w", err)
	}
	return store.RenameSources(ctx, tx, `walpost.replays`, `t.slot = $1`, slot, renamed, "source", "at_source")
}

// chosenTables are the tables that the request is about, if all of them can choose by what it says.
func (s *Store) chosenTables(request Request) ([]*outbox.Table, error) {
	var chosen []*outbox.Table
	for _, table := range s.tables {
		if request.Source != "" && table.Source.Name != request.Source {
			continue
		}
		if err := table.CanChoose(request.Choice()); err != nil {
			return nil, debt.Refused(fmt.Sprintf("replay: %v; --source chooses another source", err))
		}
		chosen = append(chosen, table)
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case slices.Contains(s.messages, request.Source):
		return nil, debt.Refused(fmt.Sprintf("replay: source %q has no table, so nothing of it is kept that could be sent again", request.Source))
	case request.Source != "":
		return nil, debt.Refused(fmt.Sprintf("replay: the configuration has no source %q", request.Source))
	}
	return nil, debt.Refused("replay: no source has a table, so nothing is kept that could be sent again")
}
