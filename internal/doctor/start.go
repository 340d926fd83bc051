package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// checkStart asks what a relay that starts now would do, with the functions by which the relay itself decides.
func checkStart(ctx context.Context, c *checker) ([]Finding, error) {
	if c.recovery {
		return []Finding{skipped("a relay waits for the primary: see the check primary")}, nil
	}
	const why = "a relay that starts now ends with this: it touches nothing before a person has acted"
	var found []Finding
	refused := func(err error, subject string) error {
		f, isSetup := fromSetup(err, why)
		if !isSetup {
			return err
		}
		found = append(found, f.about(subject))
		return nil
	}
	facts, err := c.facts(ctx)
	if errors.Is(err, errForeignSlot) {
		return []Finding{skipped(err.Error())}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, sub := range c.Subscribers {
		if sub.RenamedFrom == "" {
			continue
		}
		_, err := slot.CanTakeOver(ctx, c.tx, c.Slot, sub.RenamedFrom, sub.Name)
		if err := refused(err, sub.Name); err != nil {
			return nil, err
		}
	}
	if facts.Record != nil {
		err := c.canRenameSources(ctx, slot.Compare(facts.Record.Fingerprint, facts.Published.Now).Renamed)
		if err := refused(err, ""); err != nil {
			return nil, err
		}
	}
	plan, err := slot.Diagnose(facts)
	if err := refused(err, ""); err != nil {
		return nil, err
	}
	switch {
	case len(found) > 0:
		return found, nil
	case plan.Repairs() && !plan.Adopt:
		return []Finding{warning("a relay that starts now repairs: "+plan.String(), plan.Reason, &Fix{Do: repairs})}, nil
	}
	return []Finding{ok("a relay that starts now has this to do: " + plan.String())}, nil
}

var errForeignSlot = errors.New("the slot is another program's: see the check slot")

// facts are those of a relay that starts now. The slot is read before its record: see checkSlotMoved.
func (c *checker) facts(ctx context.Context) (f slot.Facts, err error) {
	f = slot.Facts{Name: c.Slot, Publication: c.Publication, StopOnLoss: c.StopOnLoss}
	if f.Server, err = c.slotOfName(ctx); err != nil {
		return f, err
	}
	if f.Server != nil {
		if f.Server.Check() != nil {
			return f, errForeignSlot
		}
		f.Awaiting = f.Server.Active // the relay that reads it does the second pass
	}
	if f.Record, err = c.record(ctx); err != nil {
		return f, err
	}
	if f.System, err = c.system(ctx); err != nil {
		return f, err
	}
	subscribers, err := store.Subscribers(ctx, c.tx, c.Slot)
	if err != nil {
		return f, err
	}
	f.EverReady = len(subscribers) > 0
	for _, sub := range subscribers {
		if sub.Doubt != "" {
			f.Doubts = append(f.Doubts, slot.Doubt{Subscriber: sub.Name, Reason: sub.Doubt})
		}
	}
	if f.End, err = store.WALEnd(ctx, c.tx); err != nil {
		return f, err
	}
	tables, err := c.allTables(ctx)
	if err != nil {
		return f, err
	}
	if f.Published, err = slot.ReadPublished(ctx, c.tx, c.Publication, c.Sources); err != nil {
		return f, err
	}
	if c.StopOnLoss || f.Record != nil && len(slot.Compare(f.Record.Fingerprint, f.Published.Now).Partitions) > 0 { // rows count
		if _, unread, err := c.readable(ctx); err != nil || len(unread) > 0 {
			return f, errors.Join(err, errUnread(unread))
		}
	}
	err = f.ReadSources(ctx, c.tx, c.Sources, tables)
	return f, err
}

// errUnread is why what depends on rows is not known; nil where all could be read.
func errUnread(unread []Finding) error {
	if len(unread) == 0 {
		return nil
	}
	return errors.New(unread[0].Finding + ": " + unread[0].Reason)
}

// canRenameSources returns the refusal of a relay that would give records of two sources one name.
func (c *checker) canRenameSources(ctx context.Context, renamed map[string]string) error {
	if len(renamed) == 0 {
		return nil
	}
	owed, err := debt.SourcesCollide(ctx, c.tx, c.Slot, renamed)
	if err != nil {
		return err
	}
	handled, err := store.SourcesOfInboxCollide(ctx, c.tx, c.Slot, renamed)
	if err != nil || !owed && !handled {
		return err
	}
	return slot.SourcesCollide(renamed, nil)
}

// system is the server as a replication connection would say it. The control file of a server that was promoted a
// moment ago still has the old timeline; the file name of the WAL has the new one. Neither works on a standby.
func (c *checker) system(ctx context.Context) (system wal.System, err error) {
	err = c.tx.QueryRow(ctx, `
		SELECT system_identifier::text, ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int
		FROM pg_catalog.pg_control_system()`).Scan(&system.ID, &system.Timeline)
	if err != nil {
		return system, fmt.Errorf("ask which server this is: %w", err)
	}
	return system, nil
}

// repair is what to do about a slot that cannot be trusted: the relay repairs it, unless it would refuse.
func (c *checker) repair(ctx context.Context) *Fix {
	facts, err := c.facts(ctx)
	if err != nil {
		return &Fix{Do: repairs}
	}
	_, err = slot.Diagnose(facts)
	if f, refused := fromSetup(err, ""); refused {
		return f.Fix
	}
	return &Fix{Do: repairs}
}
