package slot

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// ReadSources completes facts with what has to be asked of the sources of the configuration, once Record, Published and
// StopOnLoss are known. tables are the sources that have one.
func (f *Facts) ReadSources(ctx context.Context, db outbox.DB, sources []*outbox.Source, tables []*outbox.Table) error {
	var difference Difference
	if f.Record != nil {
		difference = Compare(f.Record.Fingerprint, f.Published.Now)
	}
	for _, table := range tables {
		attached, err := table.WaitsIn(ctx, db, difference.Partitions)
		if err != nil {
			return err
		}
		f.Sources = append(f.Sources, Source{
			Name: table.Source.Name, Table: pgx.Identifier{table.Source.Schema, table.Source.Table}, Marks: table.Marks(),
			RepairAll: table.Source.RepairAll, Attached: attached,
		})
	}
	for _, source := range sources {
		if source.Messages != "" {
			f.Sources = append(f.Sources, Source{Name: source.Name})
		}
	}
	var err error
	if f.MarkedByOthers, err = store.MarkedByOthers(ctx, db, f.Name, MarkedRelations(tables)); err == nil && f.StopOnLoss {
		f.Unpublished, err = outbox.CountUnpublished(ctx, db, tables)
	}
	return err
}

// MarkedRelations are the tables whose rows are marked, sorted, as walpost.marked_tables has them.
func MarkedRelations(tables []*outbox.Table) []string {
	names := []string{}
	for _, table := range tables {
		if table.Marks() {
			names = append(names, table.Source.Schema+"."+table.Source.Table)
		}
	}
	slices.Sort(names)
	return names
}

// CanTakeOver reports whether a subscriber that was renamed has something to take over from its former name. Where both
// names are known to the slot, a person has to choose.
func CanTakeOver(ctx context.Context, q store.Querier, slot, before, name string) (bool, error) {
	had, err := store.HasSubscriber(ctx, q, slot, before)
	if err != nil || !had { // taken over before, or never there
		return false, err
	}
	has, err := store.HasSubscriber(ctx, q, slot, name)
	if err != nil || !has {
		return err == nil, err
	}
	return false, &wal.SetupError{
		Problem: fmt.Sprintf("subscriber %q is to take over from %q, and both are known to the slot: which position and which debt are meant?", name, before),
		Fix: fmt.Sprintf("take renamed_from out of the configuration, and %[1]q goes on as itself while what %[2]q is owed stays; or start once with neither of them and forget one: "+
			"walpost subscribers forget %[1]s lets %[1]q carry on where %[2]q was", name, before)}
}

// SourcesCollide refuses to let sources take over what is recorded under former names, by their former names; err is
// the server's, if there was one.
func SourcesCollide(renamed map[string]string, err error) error {
	return &wal.SetupError{Err: err,
		Problem: fmt.Sprintf("sources are to take over what is recorded under former names (%v), and a new name has records of the same events already", renamed),
		Fix:     "give the source a name that was not used before"}
}
