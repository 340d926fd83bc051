package outbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Fingerprint is a text that changes when what is published changes: when the publication or one of the
// tables is made again, altered, or taken out and put back. Rows written in between are in the table and
// not in the stream, and no message tells of it (docs/postgres.md §3).
//
// Any role can read what it is made of. A source of messages has no part in it. A publication or table
// that is missing is an error: ErrNoPublication, ErrNoTable.
//
// Partitions are part of it because one that is attached brings rows with it that were never streamed; see
// Attached.
func Fingerprint(ctx context.Context, db DB, publication string, sources []*Source) (string, error) {
	var (
		print    strings.Builder
		oid      uint32
		identity string
		version  int
	)
	err := db.QueryRow(ctx, `
		SELECT oid, oid || ':' || xmin, current_setting('server_version_num')::int
		FROM pg_publication WHERE pubname = $1`, publication).Scan(&oid, &identity, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("fingerprint: %w: there is no publication %q in this database", ErrNoPublication, publication)
	}
	if err != nil {
		return "", fmt.Errorf("fingerprint publication %q: %w", publication, err)
	}
	print.WriteString("publication " + identity)

	// A partition is published by its root.
	entries := `SELECT r.oid, r.xmin FROM pg_publication_rel r WHERE r.prpubid = $1 AND r.prrelid IN (c.oid, pg_partition_root(c.oid))`
	if version >= 150000 { // FOR TABLES IN SCHEMA
		entries += ` UNION ALL SELECT s.oid, s.xmin FROM pg_publication_namespace s WHERE s.pnpubid = $1 AND s.pnnspid = c.relnamespace`
	}
	for _, s := range sources {
		if s.Table == "" {
			continue
		}
		var table, published, partitions string
		err := db.QueryRow(ctx, `
			SELECT c.oid::text, (SELECT coalesce(string_agg(e.oid || ':' || e.xmin, ',' ORDER BY e.oid), 'none') FROM (`+entries+`) e),
			       coalesce((SELECT string_agg(p.relid::oid::text, ',' ORDER BY p.relid::oid) FROM pg_partition_tree(c.oid) p
			                 WHERE c.relkind = 'p' AND p.isleaf), '')
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $2 AND c.relname = $3`, oid, s.Schema, s.Table).Scan(&table, &published, &partitions)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", fmt.Errorf("fingerprint: %w: source %q: there is no table %s in this database", ErrNoTable, s.Name, s.relation())
		}
		if err != nil {
			return "", fmt.Errorf("fingerprint table %s: %w", s.relation(), err)
		}
		print.WriteString("; " + s.relation() + " " + table + " by " + published)
		if partitions != "" {
			print.WriteString(" [" + partitions + "]")
		}
	}
	return print.String(), nil
}

// ErrNoPublication and ErrNoTable tell what is missing where a Fingerprint was wanted.
var (
	ErrNoPublication = errors.New("publication is gone")
	ErrNoTable       = errors.New("table is gone")
)

var partitionList = regexp.MustCompile(` \[([0-9,]*)\]`)

// Attached compares two fingerprints. Where only partitions have come and gone, it returns those that have
// come; else ok is false.
func Attached(before, after string) (partitions []uint32, ok bool) {
	if partitionList.ReplaceAllString(before, "") != partitionList.ReplaceAllString(after, "") {
		return nil, false
	}
	known := partitionsIn(before)
	for _, oid := range partitionsIn(after) {
		if !slices.Contains(known, oid) {
			partitions = append(partitions, oid)
		}
	}
	return partitions, true
}

func partitionsIn(fingerprint string) []uint32 {
	var oids []uint32
	for _, list := range partitionList.FindAllStringSubmatch(fingerprint, -1) {
		for text := range strings.SplitSeq(list[1], ",") {
			if oid, err := strconv.ParseUint(text, 10, 32); err == nil {
				oids = append(oids, uint32(oid))
			}
		}
	}
	return oids
}

// WaitsIn reports whether one of the partitions has an unpublished row.
func (t *Table) WaitsIn(ctx context.Context, db DB, partitions []uint32) (bool, error) {
	if len(partitions) == 0 {
		return false, nil
	}
	condition := "true"
	if t.Published != "" {
		condition = t.unpublished()
	}
	var waits bool
	err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+t.sql()+` t WHERE t.tableoid = ANY ($1) AND `+condition+`)`, partitions).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look into new partitions of %s: %w", t.Source.relation(), err)
	}
	return waits, nil
}
