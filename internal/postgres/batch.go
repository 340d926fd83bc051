package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// InBatch runs the statements that queue adds as a transaction (read committed) in one round trip, pins, BEGIN and
// COMMIT included. Locks that they take are so held for the time that the server works, and not while it
// waits for us. Its arguments are as in Query.
//
// The server skips what stands behind a statement that fails, so it reaches COMMIT only when everything
// before it went well; and if queue returns an error, nothing is sent. An error of a callback comes too late
// to undo anything: callbacks see results when the transaction is over.
//
// Statements are prepared at their first use on a session (which then takes longer), so they are a small number of
// fixed texts.
func InBatch(ctx context.Context, pool *Pool, queue func(*pgx.Batch) error) error {
	var own pgx.Batch
	if err := queue(&own); err != nil {
		return err
	}
	conn, err := pool.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire session: %w", err)
	}
	defer conn.Release() // closes a connection that is still in a transaction

	pinning := pinsSQL(ordinary, versionOf(conn))
	batch := pgx.Batch{QueuedQueries: slices.Concat(
		[]*pgx.QueuedQuery{
			{SQL: readWrite, Fn: result("begin")},
			{SQL: noJIT, Fn: result("pin the session")},
			{SQL: pinning, Fn: result("pin the session")},
		},
		own.QueuedQueries,
		[]*pgx.QueuedQuery{{SQL: "COMMIT", Fn: result("commit")}})}
	if err := prepare(ctx, conn, pinning, &batch); err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	err = conn.SendBatch(ctx, &batch).Close()
	rollBack(ctx, conn)
	if code := Code(err); code == "0A000" || code == "26000" {
		// A statement that was prepared for a table of another shape, or that the server has forgotten.
		_ = conn.Conn().Close(ctx)
	}
	if err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	return nil
}

// prepare makes the statements of a batch known to the session, in a pinned transaction: the server looks names up when
// it prepares. Otherwise pgx would do so, before the batch and so before its pins.
//
// Behind a pooler nothing is prepared (see Open): there the server reads each statement in its turn.
func prepare(ctx context.Context, conn *pgxpool.Conn, pinning string, batch *pgx.Batch) error {
	if conn.Conn().Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return nil
	}
	known, _ := conn.Conn().PgConn().CustomData()[preparedKey].(map[string]bool)
	var missing []string
	for _, query := range batch.QueuedQueries {
		if !known[query.SQL] && !slices.Contains(missing, query.SQL) {
			missing = append(missing, query.SQL)
		}
	}
	if missing == nil {
		return nil
	}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: readOnly + "; " + noJIT + "; " + pinning}, func(pgx.Tx) error {
		for _, sql := range missing {
			if _, err := conn.Conn().Prepare(ctx, sql, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if known == nil {
		known = make(map[string]bool)
		conn.Conn().PgConn().CustomData()[preparedKey] = known
	}
	for _, sql := range missing {
		known[sql] = true
	}
	return nil
}

// preparedKey is where a connection keeps the texts that it has prepared.
const preparedKey = "walpost prepared"

// result is a callback that says of an error which statement it is of.
func result(of string) func(pgx.BatchResults) error {
	return func(results pgx.BatchResults) error {
		if _, err := results.Exec(); err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
		return nil
	}
}
