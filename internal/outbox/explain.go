package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
)

// ExplainMark adds to an error of Mark what keeps the rows as they are, by name, and what a person must do. Any
// other error comes back as it is.
func ExplainMark(ctx context.Context, pool *postgres.Pool, err error) error {
	var failed *MarkError
	if !errors.As(err, &failed) {
		return err
	}
	explained := err
	// A transaction of its own: the one that failed answers nothing any more.
	_ = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		explained = failed.table.explain(ctx, tx, err)
		return nil
	})
	return explained
}

func (t *Table) explain(ctx context.Context, tx pgx.Tx, err error) error {
	way := fmt.Sprintf("or set mark: off for source %q", t.Source.Name)
	switch code := postgres.Code(err); {
	case code == "55000": // object_not_in_prerequisite_state
		return fmt.Errorf("%w: another publication carries updates of this table, which has no replica identity: give it a primary key, "+
			"or %s, or take it off that publication, %s", err, advice.SetReplicaIdentity(t.identifier()), way)
	case code == "42703": // undefined_column
		back := "give it back as it was"
		if t.Published == "published_at" && !t.boolean { // with its rows published, so that they are not all sent again
			back += fmt.Sprintf("; if published_at was dropped: %s", advice.AddPublishedColumn(t.identifier()))
		}
		return fmt.Errorf("%w: one of the columns that a mark writes, %s, is gone from %s or has another name: %s, %s", err, t.updated(), t.sql(), back, way)
	case code == "42501": // insufficient_privilege
		if t.hasPolicies(ctx, tx) {
			return fmt.Errorf("%w: row level security of %s is in force for the relay's role: %s, "+
				"or make it the owner of the table, %s", err, t.sql(), advice.BypassRowSecurity(roleOf(ctx, tx)), way)
		}
		return fmt.Errorf("%w: %s, %s", err, advice.GrantOnTable([]string{"SELECT"}, t.MarkColumns(), t.identifier(), roleOf(ctx, tx)), way)
	case errors.Is(err, ErrNotTaken), strings.HasPrefix(code, "P0"), strings.HasPrefix(code, "23"), code == "0A000":
		changers, lookErr := t.changers(ctx, tx)
		if lookErr != nil || len(changers) == 0 {
			changers = []string{"something that the catalog does not tell"}
		}
		return fmt.Errorf("%w, by %s of %s: let it pass an UPDATE of %s, %s", err, strings.Join(changers, " or "), t.sql(), t.updated(), way)
	}
	return err
}

func roleOf(ctx context.Context, tx pgx.Tx) string {
	role := "walpost_relay"
	_ = tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&role) // the name that deploy/sql/roles.sql gives it will do
	return role
}

func (t *Table) hasPolicies(ctx context.Context, tx pgx.Tx) bool {
	var enabled bool
	err := tx.QueryRow(ctx, `SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = $1`, t.OID).Scan(&enabled)
	return err == nil && enabled
}

// changers names what runs when a row of the table is updated: triggers, those of its partitions too, and rules.
// (PostgreSQL manual, "pg_trigger": the bits of tgtype; "pg_rewrite")
func (t *Table) changers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT 'trigger ' || pg_catalog.quote_ident(g.tgname) FROM pg_catalog.pg_trigger g
		WHERE (g.tgrelid = $1 OR g.tgrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid::regclass)))
		AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND g.tgtype & 16 <> 0
		UNION ALL
		SELECT 'rule ' || pg_catalog.quote_ident(r.rulename) FROM pg_catalog.pg_rewrite r
		WHERE r.ev_class = $1 AND r.ev_type = '2' AND r.ev_enabled IN ('O', 'A') ORDER BY 1`, t.OID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// LockedBy tells who has locked a row, with pid and query, or "" when no one is found: the lock may just have
// ended. Row locks stand in the row, so it is asked who runs the transaction of its xmax, or one of the
// transactions that this number stands for. (PostgreSQL manual, "Row-Level Locks", "pg_get_multixact_members")
func (t *Table) LockedBy(ctx context.Context, tx pgx.Tx, row string) (string, error) {
	keys, err := t.keyValues(row)
	if err != nil {
		return "", err
	}
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	same := t.eachKey(" AND ", func(column string, n int, typ string) string {
		return fmt.Sprintf("t.%s = $%d::text::%s", column, n, typ)
	})
	var xmax string
	err = tx.QueryRow(ctx, `SELECT t.xmax::text FROM `+t.sql()+` t WHERE `+same, args...).Scan(&xmax)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look who has locked row %q of %s: %w", row, t.Source.relation(), err)
	}
	lockers := []string{xmax}
	_ = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { // an error where the number is no multixact
		rows, err := savepoint.Query(ctx, `SELECT xid::text FROM pg_catalog.pg_get_multixact_members($1::text::xid)`, xmax)
		if err != nil {
			return err
		}
		members, err := pgx.CollectRows(rows, pgx.RowTo[string])
		lockers = append(lockers, members...)
		return err
	})
	var who string
	err = tx.QueryRow(ctx, `
		SELECT pg_catalog.string_agg(who, '; ') FROM (
			SELECT `+postgres.SessionSQL+` AS who
			FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
			WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.transactionid::text = ANY ($1)
			UNION
			SELECT pg_catalog.format('the prepared transaction %L of role %s, since %s', gid, owner, prepared)
			FROM pg_catalog.pg_prepared_xacts WHERE transaction::text = ANY ($1)) w HAVING pg_catalog.count(*) > 0`, lockers).Scan(&who)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look who has locked row %q of %s: %w", row, t.Source.relation(), err)
	}
	return who, nil
}
