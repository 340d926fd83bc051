package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/wal"
)

// restartIfReadableAgain is asked why a stream cannot be read. Rows that were written while their table had another name or
// lacked a column stay unreadable in the WAL, also after a person has fixed the table. Then the stream is of
// no use up to there, and the table has all that it would bring: the slot is made again. While the table is not
// as it should be, err stands, for the person.
func (r *Relay) restartIfReadableAgain(ctx context.Context, err error) error {
	var mismatch *dispatch.MismatchError
	if !errors.As(err, &mismatch) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if tables, inspectErr := r.inspect(ctx); inspectErr != nil || !r.publishes(ctx, tables) {
		return err
	}
	return &changed{unreadable: true, reason: fmt.Sprintf("the stream has rows from when a table was not as it is now (%v)", mismatch)}
}

// publishes reports whether the publication carries the tables now, with all columns that are needed, and no
// others: then a new slot brings nothing that cannot be read.
func (r *Relay) publishes(ctx context.Context, tables []*outbox.Table) bool {
	all, err := wal.PublishedTables(ctx, r.Pool, r.Publication)
	if err != nil || len(all) != len(tables) {
		return false
	}
	for _, p := range all {
		fits := false
		for _, table := range tables {
			if table.Source.Schema == p.Schema && table.Source.Table == p.Table {
				_, err := table.Layout(p.Columns)
				fits = p.Columns == nil || err == nil
			}
		}
		if !fits {
			return false
		}
	}
	return true
}
