package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// RenameSources gives sources other names in the columns of a table of the schema walpost, by their former names. Names
// may be exchanged: each row is renamed by way of a name that no source has. where chooses rows of slot $1.
func RenameSources(ctx context.Context, tx pgx.Tx, table, where, slot string, renamed map[string]string, columns ...string) error {
	var former, names, between []string
	for before, name := range renamed {
		former, names, between = append(former, before), append(names, name), append(between, "\x01"+name)
	}
	for _, step := range [][2][]string{{former, between}, {between, names}} {
		for _, column := range columns {
			_, err := tx.Exec(ctx, `UPDATE `+table+` t SET `+column+` = n.name
				FROM unnest($2::text[], $3::text[]) n (before, name) WHERE `+where+` AND t.`+column+` = n.before`, slot, step[0], step[1])
			if err != nil {
				return fmt.Errorf("rename sources in %s: %w", table, err)
			}
		}
	}
	return nil
}

// SourcesCollide reports whether RenameSources would give a row of a table the key of another one that keeps its name.
func SourcesCollide(ctx context.Context, q Querier, table, slot string, renamed map[string]string) (collide bool, err error) {
	var former, names []string
	for before, name := range renamed {
		former, names = append(former, before), append(names, name)
	}
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+table+` t
		JOIN unnest($2::text[], $3::text[]) n (before, name) ON t.source = n.before
		JOIN `+table+` u ON u.slot = t.slot AND u.subscriber = t.subscriber AND u.event_id = t.event_id AND u.occurrence = t.occurrence AND u.source = n.name
		WHERE t.slot = $1 AND u.source <> ALL ($2))`, slot, former, names).Scan(&collide)
	if err != nil {
		return false, fmt.Errorf("look for records of renamed sources in %s: %w", table, err)
	}
	return collide, nil
}

// SourcesOfInboxCollide reports whether RenameSourcesOfInbox would fail.
func SourcesOfInboxCollide(ctx context.Context, q Querier, slot string, renamed map[string]string) (bool, error) {
	return SourcesCollide(ctx, q, `walpost.inbox`, slot, renamed)
}

// RenameSourcesOfInbox gives sources other names in walpost.inbox, by their former names.
func RenameSourcesOfInbox(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
	return RenameSources(ctx, tx, `walpost.inbox`, `t.slot = $1`, slot, renamed, "source")
}

// RenameSourcesInHand gives the source of the delivery that is in hand in safe mode its other name.
func RenameSourcesInHand(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
	_, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET quarantined = pg_catalog.jsonb_set(quarantined, '{source}', $2::text::jsonb->(quarantined->>'source'))
		WHERE slot = $1 AND pg_catalog.jsonb_exists($2::text::jsonb, quarantined->>'source')`, slot, encode(renamed))
	if err != nil {
		return fmt.Errorf("rename the source of the event in hand at slot %q: %w", slot, err)
	}
	return nil
}

// WriteWants writes what a subscriber wants, as JSON.
func WriteWants(ctx context.Context, tx pgx.Tx, slot, name, wants string) error {
	_, err := tx.Exec(ctx, `UPDATE walpost.subscribers SET wants = $3::text::jsonb WHERE slot = $1 AND name = $2`, slot, name, wants)
	if err != nil {
		return fmt.Errorf("write what subscriber %q wants: %w", name, err)
	}
	return nil
}
