package debt

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// copyAtLeast is from how many deliveries a COPY is tried: below, the saved work does not pay for its round trips.
const copyAtLeast = 100

// copyWaiting is recordWaiting for deliveries of which none is recorded yet, and no two are one event: it fails with a
// unique violation otherwise. COPY writes many rows with one record of the WAL, so that the primary and the decoding of the
// WAL have half the work of an INSERT.
func (s *Store) copyWaiting(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	byReference := s.byReference()
	var references, copies []*lane.Owed
	for i := range owed {
		if byReference(owed[i].Event) {
			references = append(references, &owed[i])
		} else {
			copies = append(copies, &owed[i])
		}
	}
	for _, write := range []struct {
		owed   []*lane.Owed
		copied bool
	}{{references, false}, {copies, true}} {
		if len(write.owed) == 0 {
			continue
		}
		names, columns := []string{"slot", "subscriber", "state", "copied"}, ofEach
		if write.copied {
			columns = slices.Concat(ofEach, ofCopies)
		}
		for _, column := range columns {
			names = append(names, column.name)
		}
		row := make([]any, 0, len(names))
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"walpost", "owed"}, names, pgx.CopyFromSlice(len(write.owed), func(i int) ([]any, error) {
			row = append(row[:0], s.slot, subscriber, string(lane.StateWaiting), write.copied)
			row = appendValues(row, write.owed[i])
			if write.copied {
				row = appendCopyValues(row, write.owed[i].Event)
			}
			return row, nil
		}))
		if err != nil {
			return fmt.Errorf("record %s as owed to %q: %w", printable.Count(len(write.owed), "delivery"), subscriber, err)
		}
	}
	return nil
}

// appendValues appends what ofEach names.
func appendValues(row []any, o *lane.Owed) []any {
	e := o.Event
	return append(row, e.Source, e.ID, e.Occurrence, e.Position.Epoch, binaryLSN(e.Position.Commit), e.Position.Ordinal,
		e.Bound != 0, o.InTableOrder, binaryLSN(e.LastOf().Commit),
		store.Storable(e.Type), store.Storable(e.Key), e.Row, int64(e.XID), known(e.CommittedAt),
		int32(o.Attempts), known(o.NextAttempt), known(o.FirstFailure), known(o.LastFailure),
		reason(o.Err), reason(e.Invalid), e.Lost, int32(e.Size()))
}

// appendCopyValues appends what ofCopies names.
func appendCopyValues(row []any, e *event.Event) []any {
	return append(row, store.Storable(e.Version), store.Storable(e.AggregateType), store.Storable(e.AggregateID),
		store.Storable(e.Topic), store.Storable(e.Revision), store.Storable(e.OccurredAt), e.PayloadType.String(),
		body(e.Payload), body(e.Headers))
}

// binaryLSN is a pg_lsn as COPY takes it: pgx does not know the type and passes bytes through.
func binaryLSN(lsn event.LSN) []byte { return binary.BigEndian.AppendUint64(nil, uint64(lsn)) }
