package relay

import (
	"context"
	"reflect"
	"sync"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/jackc/pgx/v5"
)

// base is what all parts of a relay share. New makes it, and no one changes it.
type base struct {
	Options
	fence       *store.Fence
	owed        *debt.Store
	progress    *wal.Progress // of the stream
	slotMetrics *wal.Metrics
	metrics     *metrics
	condition   *condition
	saidGone    *sync.Map // sources whose log says that rows are gone
}

// inTerm runs do in a transaction of this leadership: no later one can have begun before its end, and it fails once
// one has.
func (b *base) inTerm(ctx context.Context, do func(pgx.Tx) error) error {
	return postgres.InTx(ctx, b.Pool, func(tx pgx.Tx) error {
		if err := b.fence.HoldTx(ctx, tx); err != nil {
			return err
		}
		return do(tx)
	})
}

// inspect looks up the tables of the sources. record, which may be nil, tells by which columns their events are known.
func (b *base) inspect(ctx context.Context, record *store.SlotRecord) ([]*outbox.Table, error) {
	var tables []*outbox.Table
	for _, source := range b.Sources {
		if source.Messages != "" {
			continue
		}
		if by, ok := record.KnownOf(source.Schema, source.Table); ok {
			source = source.KnownAs(outbox.KnownBy(by))
		}
		table, err := source.Inspect(ctx, b.Pool)
		if err != nil {
			if postgres.Unavailable(err) {
				return nil, err
			}
			return nil, &wal.SetupError{Problem: err.Error(), Fix: "change the table, or what the configuration says of the source (table, columns), and start again"}
		}
		for _, warning := range table.Warnings() {
			b.Log.Warn(warning)
		}
		table.OnMissing = func(gone, replaced int) { b.noteMissing(source.Name, gone, replaced) }
		tables = append(tables, table)
	}
	return tables, nil
}

// recordKnownBy records by which columns events are known, before any of them is recorded under them.
func (b *base) recordKnownBy(ctx context.Context, s *session) error {
	now := make(map[string]store.KnownBy)
	for _, table := range s.tables {
		by := store.KnownBy(table.KnownBy())
		schema, name := table.Source.Schema, table.Source.Table
		if before, ok := s.record.KnownOf(schema, name); !ok || !reflect.DeepEqual(before, by) {
			now[store.RelationName(schema, name)] = by
		}
	}
	if len(now) == 0 {
		return nil
	}
	return b.inTerm(ctx, func(tx pgx.Tx) error { return store.WriteKnownBy(ctx, tx, b.Slot, now) })
}

// noteMissing counts rows that were not marked because they are gone, or hold other events. A service that deletes its
// rows does that all day: the log says it once.
func (b *base) noteMissing(source string, gone, replaced int) {
	if gone > 0 {
		b.metrics.gone.WithLabelValues(source).Add(float64(gone))
		if _, said := b.saidGone.LoadOrStore(source, true); !said {
			b.Log.Warn("rows are gone that were to be marked as published: their service deletes them; what is still to be delivered when the slot is lost is in no table then",
				"source", source, "rows", gone, "counted_in", "walpost_rows_gone_total")
		}
	}
	if replaced == 0 {
		return
	}
	b.metrics.replaced.Add(float64(replaced))
	b.Log.Warn("rows hold other events than those that were to be marked: an id or a primary key came again; they are not marked for them", "source", source, "rows", replaced)
}

// recordPublished records what is published, where nothing can be missing from the stream.
func (b *base) recordPublished(ctx context.Context, s *session) error {
	difference := s.compare()
	s.fingerprint = difference.Record(s.published.Now, difference.SecondPass)
	return b.replaceFingerprint(ctx, s.record.Fingerprint, s.fingerprint)
}

func (b *base) replaceFingerprint(ctx context.Context, before, now store.Fingerprint) error {
	if now.Equal(before) {
		return nil
	}
	err := b.inTerm(ctx, func(tx pgx.Tx) error { return store.WriteFingerprint(ctx, tx, b.Slot, now) })
	if err == nil {
		b.Log.Info("sources or their partitions have come or gone, and no row is missing from the stream", "slot", b.Slot)
	}
	return err
}
