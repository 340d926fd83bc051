package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RecentTypes are the event types of the last rows of the table, at most limit, in the order in which a repair reads them.
func (t *Table) RecentTypes(ctx context.Context, db DB, limit int) ([]string, error) {
	order := make([]string, len(t.place))
	for i, c := range t.place {
		order[i] = c.sql() + " DESC"
	}
	rows, err := db.Query(ctx, `SELECT DISTINCT s.type FROM (
		SELECT coalesce(`+t.part(t.layout.typ)+`::text, '') AS type FROM `+t.sql()+` t
		ORDER BY `+strings.Join(order, ", ")+` LIMIT `+strconv.Itoa(limit)+`) s ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("look for the types in %s: %w", t.Source.relation(), err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for the types in %s: %w", t.Source.relation(), err)
	}
	return types, nil
}
