package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Query runs one statement that changes nothing in a transaction of its own, read-only so that it works on a standby.
// It takes one round trip, transaction and pins included. Nothing is prepared, so arguments are of types that pgx
// encodes without asking the server (pgx.QueryExecModeExec).
//
// The rows hold a session until they are closed or read to their end.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := p.single(ctx, readOnly, sql, args)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// QueryRow is Query for the first row; Scan returns pgx.ErrNoRows when there is none.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.single(ctx, readOnly, sql, args)
	return firstRow{rows, err}
}

// Exec runs one statement in a transaction of its own, in one round trip. Its arguments are as in Query.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := p.single(ctx, readWrite, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// single sends a transaction of one statement, all of it at once. The server skips what stands behind a statement
// that fails, and reads each statement only when those before it are done: under the pins.
func (p *Pool) single(ctx context.Context, begin, sql string, args []any) (*singleRows, error) {
	for len(args) > 0 {
		if _, isMode := args[0].(pgx.QueryExecMode); !isMode {
			break
		}
		args = args[1:] // there is one mode here, in which values come as text
	}
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire session: %w", err)
	}
	var values pgx.ExtendedQueryBuilder
	if err := values.Build(conn.Conn().TypeMap(), nil, args); err != nil {
		conn.Release()
		return nil, err
	}
	var batch pgconn.Batch
	batch.ExecParams(begin, nil, nil, nil, nil)
	batch.ExecParams(noJIT, nil, nil, nil, nil)
	batch.ExecParams(pinsSQL(ordinary, versionOf(conn)), nil, nil, nil, nil)
	batch.ExecParams(sql, values.ParamValues, nil, values.ParamFormats, values.ResultFormats)
	batch.ExecParams("COMMIT", nil, nil, nil, nil)
	r := &singleRows{ctx: ctx, conn: conn, results: conn.Conn().PgConn().ExecBatch(ctx, &batch)}
	for n := 1; ; n++ {
		if !r.results.NextResult() {
			r.finish()
			if r.err == nil {
				r.err = errors.New("the server has not answered all statements")
			}
			return nil, r.err
		}
		if n == 4 {
			break
		}
		_, _ = r.results.ResultReader().Close() // its error comes with the next result
	}
	r.Rows = pgx.RowsFromResultReader(conn.Conn().TypeMap(), r.results.ResultReader())
	return r, nil
}

// singleRows are the rows of the one statement in a transaction that single sends.
type singleRows struct {
	pgx.Rows
	ctx     context.Context
	conn    *pgxpool.Conn // nil when it is given back
	results *pgconn.MultiResultReader
	err     error // of the transaction
}

// Next closes the rows after the last one.
func (r *singleRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close ends the transaction and gives the session back.
func (r *singleRows) Close() {
	r.Rows.Close()
	r.finish()
}

// Err is the error of the statement, or that of the commit when the rows are closed.
func (r *singleRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

func (r *singleRows) finish() {
	if r.conn == nil {
		return
	}
	r.err = r.results.Close()
	rollBack(r.ctx, r.conn)
	r.conn.Release()
	r.conn = nil
}

// firstRow is the row of QueryRow.
type firstRow struct {
	rows *singleRows
	err  error
}

// Scan implements pgx.Row.
func (r firstRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
