package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// ErrNoSubscriber means that nothing is recorded of a subscriber of that name.
var ErrNoSubscriber = errors.New("there is no subscriber")

func noSubscriber(name string) error {
	return fmt.Errorf("%w %q at this slot: `walpost subscribers list` has their names", ErrNoSubscriber, name)
}

// Subscriber is a row of walpost.subscribers: a subscriber that the slot has, or has had.
type Subscriber struct {
	Name   string
	Paused bool
	// GoneAt is since when it is in no configuration; zero while it is in one.
	GoneAt time.Time
	// Finished and Secured are up to where everything is finished, and finished or owed.
	Finished, Secured event.Position
	// Wants is what it wants, as JSON; package relay reads it.
	Wants string
	// LastSeen is when a relay last wrote its position: at its start, and whenever something was finished.
	LastSeen time.Time
	// Doubt is why its positions cannot be true, "" if they can.
	Doubt string
}

// Subscribers returns the subscribers of a slot by name.
func Subscribers(ctx context.Context, q Querier, slot string) ([]Subscriber, error) {
	rows, err := q.Query(ctx, `
		SELECT s.name, s.state = 'paused', s.gone_at, s.finished_epoch, s.finished_commit::text, s.finished_ordinal,
		       s.secured_epoch, s.secured_commit::text, s.secured_ordinal, s.wants::text, s.last_seen,
		       coalesce(`+DoubtPosition+`, '')
		FROM walpost.subscribers s LEFT JOIN walpost.slots k USING (slot) WHERE s.slot = $1 ORDER BY s.name`, slot)
	if err != nil {
		return nil, fmt.Errorf("read the subscribers of slot %q: %w", slot, err)
	}
	subscribers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Subscriber, error) {
		var s Subscriber
		var gone *time.Time
		var finished, secured string
		err := row.Scan(&s.Name, &s.Paused, &gone, &s.Finished.Epoch, &finished, &s.Finished.Ordinal,
			&s.Secured.Epoch, &secured, &s.Secured.Ordinal, &s.Wants, &s.LastSeen, &s.Doubt)
		if err != nil {
			return s, err
		}
		if gone != nil {
			s.GoneAt = gone.UTC()
		}
		s.LastSeen = s.LastSeen.UTC()
		if s.Finished.Commit, err = event.ParseLSN(finished); err != nil {
			return s, err
		}
		s.Secured.Commit, err = event.ParseLSN(secured)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the subscribers of slot %q: %w", slot, err)
	}
	return subscribers, nil
}

// HasSubscribers reports whether the slot was ever in use: its subscribers are written when it is ready.
func HasSubscribers(ctx context.Context, q Querier, slot string) (has bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM walpost.subscribers WHERE slot = $1)`, slot).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look up the subscribers of slot %q: %w", slot, err)
	}
	return has, nil
}

// HasSubscriber reports whether a subscriber of that name is recorded.
func HasSubscriber(ctx context.Context, q Querier, slot, name string) (has bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM walpost.subscribers WHERE slot = $1 AND name = $2)`, slot, name).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look up subscriber %q: %w", name, err)
	}
	return has, nil
}

// IsConfigured reports whether a subscriber is in the configuration, or returns ErrNoSubscriber.
func IsConfigured(ctx context.Context, q Querier, slot, name string) (configured bool, err error) {
	err = q.QueryRow(ctx, `SELECT gone_at IS NULL FROM walpost.subscribers WHERE slot = $1 AND name = $2`, slot, name).Scan(&configured)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, noSubscriber(name)
	}
	if err != nil {
		return false, fmt.Errorf("look up subscriber %q: %w", name, err)
	}
	return configured, nil
}

// PausedSQL is true of a slot's subscriber that is paused; slot and name are expressions.
func PausedSQL(slot, name string) string {
	return `coalesce((SELECT p.state = 'paused' FROM walpost.subscribers p WHERE p.slot = ` + slot + ` AND p.name = ` + name + `), false)`
}

// ConfiguredSQL is true of a slot's subscriber that is in the configuration; slot and name are expressions.
func ConfiguredSQL(slot, name string) string {
	return `EXISTS (SELECT FROM walpost.subscribers c WHERE c.slot = ` + slot + ` AND c.name = ` + name + ` AND c.gone_at IS NULL)`
}

// SubscriberStart is where a relay lets a subscriber begin.
type SubscriberStart struct {
	Name  string
	After event.Position // what it needs begins after it
	Wants string         // JSON
	// Left tells that it is in no configuration any more, and that something is to be recorded of it still.
	Left bool
}

// SaveStarts writes where each subscriber begins on a server, and what it wants. Those that are not named have left,
// and nothing more is to be recorded of them.
func SaveStarts(ctx context.Context, tx pgx.Tx, slot, systemID string, timeline int32, starts []SubscriberStart) error {
	names := make([]string, len(starts))
	for i, s := range starts {
		names[i] = s.Name
		sql := `
			INSERT INTO walpost.subscribers AS s (slot, name, system_id, timeline, secured_epoch, secured_commit, secured_ordinal, wants)
			VALUES ($1, $2, $3, $4, $5, $6::text::pg_lsn, $7, $8::text::jsonb)
			ON CONFLICT (slot, name) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline,
			    secured_epoch = excluded.secured_epoch, secured_commit = excluded.secured_commit,
			    secured_ordinal = excluded.secured_ordinal, wants = excluded.wants,
			    ` + finishedAtMost("excluded.secured_epoch", "excluded.secured_commit", "excluded.secured_ordinal") + `,
			    gone_at = NULL, last_seen = now(), updated_at = now()`
		if s.Left { // no INSERT: a person may have forgotten it meanwhile
			sql = `
			UPDATE walpost.subscribers s SET system_id = $3, timeline = $4,
			    secured_epoch = $5, secured_commit = $6::text::pg_lsn, secured_ordinal = $7, wants = $8::text::jsonb,
			    ` + finishedAtMost("$5", "$6::text::pg_lsn", "$7") + `,
			    gone_at = coalesce(gone_at, now()), last_seen = now(), updated_at = now()
			WHERE slot = $1 AND name = $2`
		}
		_, err := tx.Exec(ctx, sql, slot, s.Name, systemID, timeline, s.After.Epoch, s.After.Commit.String(), s.After.Ordinal, s.Wants)
		if err != nil {
			return fmt.Errorf("write position of subscriber %q: %w", s.Name, err)
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers SET gone_at = coalesce(gone_at, now()), wants = '[]', updated_at = now()
		WHERE slot = $1 AND (gone_at IS NULL OR wants <> '[]') AND name <> ALL ($2)`, slot, names)
	if err != nil {
		return fmt.Errorf("write which subscribers are gone: %w", err)
	}
	return nil
}

// finishedAtMost sets what is finished of subscriber s to no more than what is secured.
func finishedAtMost(epoch, commit, ordinal string) string {
	secured := "(" + epoch + "::int, " + commit + ", " + ordinal + "::bigint)"
	const finished = "(s.finished_epoch, s.finished_commit, s.finished_ordinal)"
	at := func(column, value string) string {
		return column + " = CASE WHEN " + finished + " > " + secured + " THEN " + value + " ELSE s." + column + " END"
	}
	return at("finished_epoch", epoch+"::int") + ", " + at("finished_commit", commit) + ", " + at("finished_ordinal", ordinal+"::bigint")
}

// RestartPositions lets subscribers begin where the slot does on a server, in an epoch.
func RestartPositions(ctx context.Context, tx pgx.Tx, slot, systemID string, timeline, epoch int32, names []string) error {
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers SET system_id = $3, timeline = $4, updated_at = now(),
		    secured_epoch = $5, secured_commit = '0/0', secured_ordinal = 0,
		    finished_epoch = $5, finished_commit = '0/0', finished_ordinal = 0
		WHERE slot = $1 AND name = ANY ($2)`, slot, names, systemID, timeline, epoch)
	if err != nil {
		return fmt.Errorf("restart the positions of %q: %w", names, err)
	}
	return nil
}

// RecordDeparture writes that everything that committed before a subscriber left is delivered or owed up to a position:
// nothing more is to be recorded of it.
func RecordDeparture(ctx context.Context, tx pgx.Tx, slot, name string, at event.Position) error {
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers SET secured_epoch = $3, secured_commit = $4::text::pg_lsn, secured_ordinal = $5,
		    wants = '[]', last_seen = now(), updated_at = now()
		WHERE slot = $1 AND name = $2 AND gone_at IS NOT NULL`, slot, name, at.Epoch, at.Commit.String(), at.Ordinal)
	if err != nil {
		return fmt.Errorf("record that subscriber %q has left: %w", name, err)
	}
	return nil
}

// SubscriberProgress is how far a subscriber is: everything up to Secured is finished or owed, everything up to
// Finished is not even owed.
type SubscriberProgress struct {
	Name              string
	Secured, Finished event.Position
}

// RaisePositions writes how far subscribers are. Positions never go back.
func RaisePositions(ctx context.Context, tx pgx.Tx, slot string, progress []SubscriberProgress) error {
	var names []string
	var epochs [2][]int32
	var commits [2][]string
	var ordinals [2][]int64
	for _, p := range progress {
		names = append(names, p.Name)
		for i, position := range [2]event.Position{p.Secured, p.Finished} {
			epochs[i] = append(epochs[i], position.Epoch)
			commits[i] = append(commits[i], position.Commit.String())
			ordinals[i] = append(ordinals[i], position.Ordinal)
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers s SET
		    secured_epoch = n.se, secured_commit = n.sc::pg_lsn, secured_ordinal = n.so,
		    finished_epoch = n.fe, finished_commit = n.fc::pg_lsn, finished_ordinal = n.fo,
		    last_seen = now(), updated_at = now()
		FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[], $6::int[], $7::text[], $8::bigint[])
		     AS n(name, se, sc, so, fe, fc, fo)
		WHERE s.slot = $1 AND s.name = n.name
		  AND (s.secured_epoch, s.secured_commit, s.secured_ordinal) <= (n.se, n.sc::pg_lsn, n.so)`,
		slot, names, epochs[0], commits[0], ordinals[0], epochs[1], commits[1], ordinals[1])
	if err != nil {
		return fmt.Errorf("record positions of the subscribers: %w", err)
	}
	return nil
}

// QueueRaiseSecured queues what raises the secured position of a subscriber; it never goes back.
func QueueRaiseSecured(batch *pgx.Batch, slot, name string, secured event.Position) {
	batch.Queue(`
		UPDATE walpost.subscribers SET secured_epoch = $3, secured_commit = $4::text::pg_lsn, secured_ordinal = $5, updated_at = now()
		WHERE slot = $1 AND name = $2
		AND (secured_epoch, secured_commit, secured_ordinal) < ($3::int, $4::text::pg_lsn, $5::bigint)`,
		slot, name, secured.Epoch, secured.Commit.String(), secured.Ordinal)
}

// SetPaused pauses or resumes a subscriber, and reports whether that changed anything.
func SetPaused(ctx context.Context, tx pgx.Tx, slot, name string, paused bool) (changed bool, err error) {
	var before bool
	err = tx.QueryRow(ctx, `SELECT state = 'paused' FROM walpost.subscribers WHERE slot = $1 AND name = $2 FOR UPDATE`, slot, name).Scan(&before)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, noSubscriber(name)
	case err != nil || before == paused:
		return false, err
	}
	_, err = tx.Exec(ctx, `
		UPDATE walpost.subscribers SET state = CASE WHEN $3 THEN 'paused' ELSE 'live' END, updated_at = now()
		WHERE slot = $1 AND name = $2`, slot, name, paused)
	return err == nil, err
}

// RenameSubscriber gives the row of a subscriber to another name, which must not be known.
func RenameSubscriber(ctx context.Context, tx pgx.Tx, slot, before, name string) error {
	_, err := tx.Exec(ctx, `UPDATE walpost.subscribers SET name = $3, updated_at = now() WHERE slot = $1 AND name = $2`, slot, before, name)
	if err != nil {
		return fmt.Errorf("rename subscriber %q to %q: %w", before, name, err)
	}
	return nil
}

// DeleteSubscriber removes the row of a subscriber.
func DeleteSubscriber(ctx context.Context, tx pgx.Tx, slot, name string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM walpost.subscribers WHERE slot = $1 AND name = $2`, slot, name); err != nil {
		return fmt.Errorf("delete subscriber %q: %w", name, err)
	}
	return nil
}
