package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
)

// knownSources returns the configured sources under the names by which the relay records their events, which may be those
// of another configuration. strangers are configured ones that are no source of the slot, of those with a table; names are
// the slot's sources. Before a relay has led the slot, every source is as it is configured.
func (a *Service) knownSources(ctx context.Context) (sources []*outbox.Source, strangers, names []string, err error) {
	slot, err := store.ReadSlotRecord(ctx, a.pool, a.slot)
	if err != nil {
		return nil, nil, nil, err
	}
	if slot == nil || len(slot.Fingerprint.Sources) == 0 {
		return a.sources, nil, nil, nil
	}
	recorded := slices.DeleteFunc(slot.Fingerprint.Sources, func(s store.PublishedSource) bool { return s.Former })
	for _, s := range recorded {
		names = append(names, fmt.Sprintf("%q", s.Name))
	}
	for _, source := range a.sources {
		at := slices.IndexFunc(recorded, func(s store.PublishedSource) bool {
			return s.Schema == source.Schema && s.Table == source.Table && s.Messages == source.Messages
		})
		switch {
		case at >= 0:
			named := *source
			named.Name = recorded[at].Name
			source = &named
			if by, ok := slot.KnownOf(source.Schema, source.Table); ok {
				source = source.KnownAs(outbox.KnownBy(by))
			}
		case source.Messages == "":
			strangers = append(strangers, fmt.Sprintf("%q (%s.%s)", source.Name, source.Schema, source.Table))
		}
		sources = append(sources, source)
	}
	return sources, strangers, names, nil
}

// refuseStrangers refuses to record events of a table that is no source of the slot: the relay could not send them, and
// stops over what it cannot find.
func (a *Service) refuseStrangers(ctx context.Context) error {
	_, strangers, names, err := a.knownSources(ctx)
	if err != nil || len(strangers) == 0 {
		return err
	}
	return debt.Refused(fmt.Sprintf("the configuration of this command has %s, which is no source of slot %q: the slot has %s. Use the configuration of the relay (--config, WALPOST_CONFIG)",
		strings.Join(strangers, ", "), a.slot, strings.Join(names, ", ")))
}

// tables looks the sources' tables up, each time, because they may have been changed.
func (a *Service) tables(ctx context.Context) ([]*outbox.Table, error) {
	sources, _, _, err := a.knownSources(ctx)
	if err != nil {
		return nil, err
	}
	var tables []*outbox.Table
	for _, source := range sources {
		if source.Messages != "" {
			continue
		}
		table, err := source.Inspect(ctx, a.pool)
		if err != nil {
			return nil, err
		}
		tables = append(tables, table)
	}
	return tables, nil
}

// debtWithTables is for what reads or marks outbox rows.
func (a *Service) debtWithTables(ctx context.Context) (*debt.Store, error) {
	tables, err := a.tables(ctx)
	if err != nil {
		return nil, err
	}
	store := a.debt()
	store.Use(tables)
	return store, nil
}
