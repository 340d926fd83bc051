package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// settingsSQL is what a statement sees of the settings that are pinned.
const settingsSQL = `SELECT pg_catalog.concat_ws(' ', pg_catalog.current_setting('transaction_isolation'), pg_catalog.current_setting('search_path'),
	pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'), pg_catalog.current_setting('TimeZone'),
	pg_catalog.current_setting('jit'), pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('standard_conforming_strings'))`

const pinnedSettings = `read committed  5min 0 UTC off UTF8 on`

// hostilePool has sessions whose settings are not ours.
func hostilePool(db *testdb.DB, mode string) *postgres.Pool {
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable", "search_path": "public", "statement_timeout": "1min", "lock_timeout": "1min",
		"TimeZone": "Asia/Tokyo", "jit": "on", "client_encoding": "LATIN1", "standard_conforming_strings": "off",
	} {
		db.Exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", db.Name, name, value))
	}
	return db.Open("default_query_exec_mode=" + mode)
}

// S-81: also those that are prepared.
func TestPool_pinsEveryStatement(t *testing.T) {
	for _, mode := range []string{"cache_statement", "exec"} {
		t.Run(mode, func(t *testing.T) {
			db := testdb.NewEmpty(t)
			db.Exec(`CREATE TABLE public.seen (how text, what text)`)
			pool := hostilePool(db, mode)
			ctx := t.Context()
			ways := map[string]func() (string, error){
				"QueryRow": func() (got string, err error) {
					err = pool.QueryRow(ctx, settingsSQL).Scan(&got)
					return got, err
				},
				"Query": func() (string, error) {
					rows, err := pool.Query(ctx, settingsSQL)
					if err != nil {
						return "", err
					}
					return pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
				},
				"Exec": func() (got string, err error) {
					_, err = pool.Exec(ctx, `INSERT INTO public.seen VALUES ('exec', (`+settingsSQL+`))`)
					if err == nil {
						err = pool.QueryRow(ctx, `SELECT what FROM public.seen WHERE how = $1`, "exec").Scan(&got)
					}
					return got, err
				},
				"InBatch": func() (got string, err error) {
					err = postgres.InBatch(ctx, pool, func(batch *pgx.Batch) error {
						batch.Queue(settingsSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
						return nil
					})
					return got, err
				},
				"InTx": func() (got string, err error) {
					err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error { return tx.QueryRow(ctx, settingsSQL).Scan(&got) })
					return got, err
				},
			}
			for range 2 { // statements are prepared at the first use
				for name, way := range ways {
					got, err := way()
					if err != nil || got != pinnedSettings {
						t.Errorf("%s sees %q, %v, want %q", name, got, err, pinnedSettings)
					}
				}
			}
		})
	}
}

// S-80: a statement is read by the server only under the pins, also when it is prepared: nothing in public is found.
func TestPool_findsNoFunctionOfOthers(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec(`CREATE FUNCTION public.array_position(smallint[], smallint) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'it ran'; END $$`)
	pool := hostilePool(db, "cache_statement")
	const sql = `SELECT array_position($1::int2[], $2::int2)`
	if _, err := db.Pool.Exec(t.Context(), sql, []int16{1}, int16(1)); err == nil || !strings.Contains(err.Error(), "it ran") {
		t.Fatalf("the trap does not work: %v", err)
	}
	for range 2 {
		var got int
		if err := pool.QueryRow(t.Context(), sql, []int16{7, 1}, int16(1)).Scan(&got); err != nil || got != 2 {
			t.Errorf("QueryRow: %d, %v, want 2", got, err)
		}
		if err := postgres.InBatch(t.Context(), pool, func(batch *pgx.Batch) error {
			batch.Queue(sql, []int16{7, 1}, int16(1))
			return nil
		}); err != nil {
			t.Errorf("InBatch: %v", err)
		}
	}
}

func TestPool_leavesTheSessionUsableAfterAFailure(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec(`CREATE TABLE public.numbers (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	pool := db.Open("pool_max_conns=1")
	ctx := t.Context()
	session := sessionOf(t, pool)
	if _, err := pool.Exec(ctx, `INSERT INTO public.numbers VALUES (1), (1)`); postgres.Code(err) != "23505" {
		t.Errorf("an error of the commit is %v, want unique_violation", err)
	}
	rows, err := pool.Query(ctx, `SELECT nonsense`)
	if err == nil {
		rows.Close()
	}
	if postgres.Code(err) != "42703" {
		t.Errorf("an error of the statement is %v, want undefined_column", err)
	}
	var n int
	err = pool.QueryRow(ctx, `INSERT INTO public.numbers VALUES (2) RETURNING n`).Scan(&n)
	if postgres.Code(err) != "25006" {
		t.Errorf("a QueryRow that writes: %v, want read_only_sql_transaction", err)
	}
	if err := pool.QueryRow(ctx, `SELECT n FROM public.numbers`).Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %d, %v, want ErrNoRows", n, err)
	}
	rows, err = pool.Query(ctx, `SELECT generate_series(1, 100000)`)
	if err != nil {
		t.Fatal(err)
	}
	rows.Next()
	rows.Close() // early
	if got := sessionOf(t, pool); got != session {
		t.Error("the session was given up")
	}
}

// S-83: a pooler that takes startup parameters and forgets them would give a session without pins.
func TestDirectConfig_isRefusedWhereStartupParametersAreIgnored(t *testing.T) {
	db := testdb.NewEmpty(t)
	for name, dsn := range map[string]string{"direct": db.DSN, "through what forgets them": forgetful(t, db)} {
		config, err := postgres.DirectConfig(dsn, "walpost/test")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if name == "direct" {
			if err != nil {
				t.Fatal(err)
			}
			conn.Close(context.Background())
			continue
		}
		if !errors.Is(err, postgres.ErrNotPinned) || !strings.Contains(err.Error(), "direct connection") {
			t.Errorf("%s: %v, want ErrNotPinned", name, err)
		}
	}
}

// forgetful passes everything on but startup parameters.
func forgetful(t *testing.T, db *testdb.DB) string {
	t.Helper()
	config, err := postgres.ConnConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				message, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
				startup, ok := message.(*pgproto3.StartupMessage)
				if err != nil || !ok {
					return
				}
				startup.Parameters = map[string]string{"user": startup.Parameters["user"], "database": startup.Parameters["database"]}
				server, err := net.Dial("tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
				if err != nil {
					return
				}
				defer server.Close()
				encoded, err := startup.Encode(nil)
				if err != nil {
					return
				}
				if _, err := server.Write(encoded); err != nil {
					return
				}
				go func() { _, _ = io.Copy(server, client) }()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable", port, config.User, config.Password, db.Name)
}

// S-291: a server that is gone without a word answers nothing. Who resets the pool does not wait until each statement has
// noticed that for itself.
func TestPool_resetEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	pool, err := postgres.Open(t.Context(), db.DSN, "reset")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, run := range map[string]func() error{
		"one statement": func() error {
			_, err := pool.Exec(t.Context(), `SELECT pg_catalog.pg_sleep(600)`)
			return err
		},
		"a transaction": func() error {
			return postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SELECT pg_catalog.pg_sleep(600)`)
				return err
			})
		},
	} {
		ended := make(chan error, 1)
		go func() { ended <- run() }()
		testprogram.Eventually(t, name+" to be under way", func() bool {
			return db.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reset' AND wait_event = 'PgSleep'`) > 0
		})
		pool.Reset()
		select {
		case err := <-ended:
			if !postgres.Unavailable(err) {
				t.Errorf("%s ended with %v, want a lost connection", name, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s goes on", name)
		}
		if _, err := pool.Exec(t.Context(), `SELECT 1`); err != nil {
			t.Errorf("after the reset: %v", err)
		}
		db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reset' AND wait_event = 'PgSleep'`)
	}
}
