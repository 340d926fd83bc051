package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-60: passwords that settings glued into a URL stumble over.
var awkward = []string{"p@ss/w#rd%41?&:'\"\\ {}`", "with a space", "é", "a/b@c", "%zz", "quote'quote"}

func TestOpen_takesAnyPasswordThatFollowsTheRule(t *testing.T) {
	db := testdb.NewEmpty(t)
	config, err := postgres.ConnConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	for _, password := range awkward {
		t.Run(password, func(t *testing.T) {
			// One role at a time, since roles belong to the server and not to the test's database.
			role := db.Name + "_role"
			db.Exec(fmt.Sprintf(`CREATE ROLE %s LOGIN REPLICATION PASSWORD '%s'`, role, strings.ReplaceAll(password, "'", "''")))
			t.Cleanup(func() { db.Exec("DROP ROLE " + role) })

			u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: fmt.Sprintf("%s:%d", config.Host, config.Port),
				Path: "/" + db.Name, RawQuery: "sslmode=disable"}
			quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
			pairs := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", config.Host, config.Port, role, quoted, db.Name)
			for form, dsn := range map[string]string{"URL": u.String(), "key=value": pairs} {
				pool, err := postgres.Open(t.Context(), dsn, "walpost/test")
				if err != nil {
					t.Errorf("%s: %v", form, err)
					continue
				}
				var name string
				if err := pool.QueryRow(t.Context(), "SELECT current_setting('application_name')").Scan(&name); err != nil || name != "walpost/test" {
					t.Errorf("%s: application_name %q, %v", form, name, err)
				}
				pool.Close()

				replication, err := postgres.ReplicationConfig(dsn)
				if err != nil {
					t.Errorf("%s: replication: %v", form, err)
					continue
				}
				conn, err := pgconn.ConnectConfig(t.Context(), replication)
				if err != nil {
					t.Errorf("%s: replication: %v", form, err)
					continue
				}
				if _, err := conn.Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil {
					t.Errorf("%s: replication: %v", form, err)
				}
				conn.Close(context.Background())
			}
		})
	}
}

func TestErrors_containNoPieceOfThePassword(t *testing.T) {
	db := testdb.NewEmpty(t)
	config, err := postgres.ConnConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("%s:%d", config.Host, config.Port)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// The pieces are words that occur in no message of their own.
	for _, dsn := range []string{
		"postgres://me:zebra@giraffe@" + server + "/db",
		"postgres://me:zebra/giraffe@" + server + "/db",
		"postgres://me:12/giraffe@" + server + "/db",
		"postgres://me:zebra@giraffe/okapi#@" + server + "/db",
		"postgres://me:zebra@giraffe?okapi=1@" + server + "/db",
		"postgres://me:zebra%zzgiraffe@" + server + "/db",
		"postgres://me:zebra:giraffe@" + server + "/db",
		"postgres://me:zebra?giraffe@" + server + "/db?sslmode=disable",
		"postgres://me:zebra#giraffe@" + server + "/db?sslmode=disable",
		"postgres://me:zebra%40giraffe@" + server + "/db?sslmode=disable",
		"postgres://me:zebragiraffe@127.0.0.1:1/db?sslmode=disable",
		"postgres://me:zebragiraffe@" + server + "/db?sslmode=zebragiraffe",
		"postgres://me@" + server + "/db?password=zebra@giraffe",
		"postgres://me@" + server + "/db?sslmode=disable&password=zebragiraffe",
		"me:zebra@giraffe",
		"host=127.0.0.1 user=me password=zebra giraffe",
		"host=127.0.0.1 user=me password='zebra'giraffe",
		"host=127.0.0.1 user=me password='zebra giraffe",
		"host=127.0.0.1 user=me password=zebra giraffe=okapi sslmode=disable port=" + fmt.Sprint(config.Port),
		"mysql://me:zebra@giraffe/db",
	} {
		_, openErr := postgres.Open(ctx, dsn, "walpost/test")
		if openErr == nil {
			t.Errorf("%s: connected", dsn)
		}
		_, configErr := postgres.ConnConfig(dsn)
		_, replicationErr := postgres.ReplicationConfig(dsn)
		var dialErr error
		if replicationErr == nil {
			replication, _ := postgres.ReplicationConfig(dsn)
			_, dialErr = pgconn.ConnectConfig(ctx, replication)
			dialErr = postgres.ConnectError(dialErr, dsn)
		}
		for what, err := range map[string]error{"open": openErr, "config": configErr, "replication": replicationErr, "dial": dialErr} {
			if err == nil {
				continue
			}
			for _, piece := range []string{"zebra", "giraffe", "okapi"} {
				if strings.Contains(err.Error(), piece) {
					t.Errorf("%s: %s: %v", dsn, what, err)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "failed to parse") {
				t.Errorf("%s: %s: not in our words: %v", dsn, what, err)
			}
		}
		for _, piece := range []string{"zebra", "giraffe", "okapi"} {
			if got := postgres.Redact(dsn); strings.Contains(got, piece) {
				t.Errorf("redacted %s: %s", dsn, got)
			}
		}
	}
}

func TestOpen_saysWhatToDo(t *testing.T) {
	db := testdb.NewEmpty(t)
	noDatabase := strings.Replace(db.DSN, db.Name, "no_such_database", 1)
	preferring := strings.Replace(noDatabase, "sslmode=disable", "sslmode=prefer", 1)
	wrongPassword := strings.Replace(db.DSN, "//postgres:", "//postgres:x", 1)
	for _, c := range []struct{ name, dsn, want string }{
		{"no such database", noDatabase, "create the database"},
		{"no such database, with TLS if there is some", preferring, "create the database"},
		{"wrong password", wrongPassword, "check user, password"},
		// S-178: once, in words, with the part of the connection string that is at fault.
		{"no one listens", "postgres://me@127.0.0.1:1/db", `user "me": nothing listens there (connection refused): is the server running, and are host and port right?`},
		{"no one listens at either", "postgres://me@127.0.0.1:1,127.0.0.1:2/db?sslmode=disable", `user "me": 127.0.0.1:1: nothing listens there`},
		{"no such host", "postgres://me@nowhere.invalid/db", `user "me": there is no such host: correct the host`},
		{"no TLS", strings.Replace(db.DSN, "sslmode=disable", "sslmode=verify-full", 1), "the server takes no TLS: turn it on there (ssl = on), or say with sslmode=disable"},
		{"no socket", "host=/nowhere dbname=db user=me", "there is no socket of a server"},
		{"not such a server", db.DSN + "&target_session_attrs=read-only", "not one that target_session_attrs asks for"},
		{"two at signs", "postgres://me:a@b@127.0.0.1/db", "%40"},
		{"missing certificate", "postgres://me@127.0.0.1/db?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"},
		{"bad port", "postgres://me@127.0.0.1:99999/db", "invalid port"},
	} {
		if _, err := postgres.Open(t.Context(), c.dsn, "walpost/test"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		} else if strings.Contains(err.Error(), "takes no TLS") != strings.Contains(c.want, "TLS") { // S-497
			t.Errorf("%s: says that the server takes no TLS, or does not: %v", c.name, err)
		} else if strings.Count(err.Error(), "refused)") > strings.Count(c.dsn, ",")+1 {
			t.Errorf("%s: said more than once: %v", c.name, err)
		}
	}
}

func TestRedact_tellsWhereAndMasksThePassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://me:secret@db.example:5433/shop?sslmode=disable": "postgres://me:xxxxx@db.example:5433/shop",
		"postgres://me@db.example/shop?sslmode=disable":             "postgres://me@db.example:5432/shop",
		"host=/run/pg user=me password='se cret' dbname=shop":       "postgres://me:xxxxx@/shop?host=%2Frun%2Fpg&port=5432",
		"postgres://me@[::1]:5433/shop?sslmode=disable":             "postgres://me@[::1]:5433/shop",
		"postgres://me:a@b@c/shop":                                  "(a connection string that cannot be read)",
	} {
		if got := postgres.Redact(dsn); got != want {
			t.Errorf("%s: got %s, want %s", dsn, got, want)
		}
	}
}

func TestMask_hidesThePasswordAndKeepsTheCause(t *testing.T) {
	cause := errors.New("login as me with se%cret refused")
	err := postgres.Mask(fmt.Errorf("dial: %w", cause), "postgres://me:se%25cret@db.example/shop?sslmode=disable")
	if got, want := err.Error(), "dial: login as me with xxxxx refused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
	if postgres.Mask(nil, "postgres://me:x@h/d") != nil {
		t.Error("no error became one")
	}
}

// strangers are settings that would change how values look; a role, a database and the connection
// string may all carry them.
var strangers = map[string]string{
	"DateStyle": "German", "TimeZone": "Asia/Tokyo", "IntervalStyle": "iso_8601", "bytea_output": "escape",
	"extra_float_digits": "0", "search_path": "public", "client_min_messages": "error", "statement_timeout": "1min",
	"wal_sender_timeout": "1h", "synchronous_commit": "off",
}

const samples = `SELECT concat_ws('|', timestamptz '2024-01-31 12:00:00+00', interval '1 day 2 hours', '\xdeadbeef'::bytea,
	0.1::float8 + 0.2::float8, current_schemas(false) = '{}', current_setting('client_encoding'), current_setting('lc_monetary'))`

const sampleText = `2024-01-31 12:00:00+00|1 day 02:00:00|\xdeadbeef|0.30000000000000004|t|UTF8|C`

func TestSessions_writeValuesTheSameWayWhateverTheDefaults(t *testing.T) {
	db := testdb.NewEmpty(t)
	options := url.Values{}
	for name, value := range strangers {
		db.Exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", db.Name, name, value))
		options.Set(strings.ToLower(name), value) // the connection string says it in another case
	}
	dsn := db.DSN + "&" + strings.ReplaceAll(options.Encode(), "+", "%20")

	pool, err := postgres.Open(t.Context(), dsn, "walpost/test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	read := func(tx pgx.Tx) error {
		var got, rls, commit string
		err := tx.QueryRow(t.Context(), samples).Scan(&got)
		if err != nil {
			return err
		}
		if got != sampleText {
			t.Errorf("in a transaction:\ngot  %s\nwant %s", got, sampleText)
		}
		err = tx.QueryRow(t.Context(), "SELECT current_setting('row_security'), current_setting('synchronous_commit')").Scan(&rls, &commit)
		if rls != "off" || commit != "on" {
			t.Errorf("row_security=%s synchronous_commit=%s, want off and on", rls, commit)
		}
		return err
	}
	if err := postgres.InTx(t.Context(), pool, read); err != nil {
		t.Fatal(err)
	}
	if err := postgres.InSnapshot(t.Context(), pool, "", read); err != nil {
		t.Fatal(err)
	}

	for range 10 { // RuntimeParams are a map: a name twice would win or lose by chance
		config, err := postgres.ReplicationConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgconn.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if got := value(t, conn, samples); got != sampleText {
			t.Errorf("in a replication session:\ngot  %s\nwant %s", got, sampleText)
		}
		conn.Close(context.Background())
	}
}

func TestInTx_rollsBackWhenTheFunctionFails(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec("CREATE TABLE public.t (n int)")
	broken := errors.New("broken")
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO public.t VALUES (1)")
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if got := db.Int("SELECT count(*) FROM public.t"); got != 0 {
		t.Errorf("%d rows, want none", got)
	}
}

// F-61: a policy that hides rows from the relay must be an error, not an empty result.
func TestInTx_refusesATableWhosePolicyHidesRows(t *testing.T) {
	db := testdb.NewEmpty(t)
	role := db.Name + "_role"
	db.Exec("CREATE TABLE public.t (n int); INSERT INTO public.t VALUES (1); ALTER TABLE public.t ENABLE ROW LEVEL SECURITY")
	db.Exec("CREATE ROLE " + role + "; GRANT SELECT ON public.t TO " + role)
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role+"; SELECT * FROM public.t")
		return err
	})
	if got := postgres.Code(err); got != "42501" {
		t.Errorf("got %v, want insufficient_privilege", err)
	}
}

func TestInSnapshot_seesWhatTheExportingSessionSaw(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec("CREATE TABLE public.t (n int)")
	exporter, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer exporter.Rollback(context.Background())
	var snapshot string
	if err := exporter.QueryRow(t.Context(), "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
		t.Fatal(err)
	}
	db.Exec("INSERT INTO public.t VALUES (1)")
	count := -1
	err = postgres.InSnapshot(t.Context(), db.Pinned, snapshot, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT count(*) FROM public.t").Scan(&count)
	})
	if err != nil || count != 0 {
		t.Errorf("sees %d rows, %v, want 0", count, err)
	}
}

func TestUnavailable_tellsWhatMayPassByItself(t *testing.T) {
	timeout, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("anything"), false},
		{context.Canceled, false},
		{timeout.Err(), true},
		{io.EOF, true},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{pgconn.ErrConnClosed, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "57P02"}, true},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "25006"}, true},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&pgconn.PgError{Code: "57014"}, false},
	} {
		if got := postgres.Unavailable(c.err); got != c.want {
			t.Errorf("Unavailable(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestUnavailable_seesAServerThatStopsAndOneThatIsAway(t *testing.T) {
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	db.Exec("SELECT 1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := server.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	for attempt := range 3 { // the broken session first, then none
		if _, err := db.Pool.Exec(ctx, "SELECT 1"); !postgres.Unavailable(err) {
			t.Errorf("attempt %d: %v is not seen as unavailable", attempt, err)
		}
	}
	if err := server.StartAgain(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("the server is back: %v", err)
	}
}

func value(t *testing.T, conn *pgconn.PgConn, sql string) string {
	t.Helper()
	results, err := conn.Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return string(results[0].Rows[0][0])
}
