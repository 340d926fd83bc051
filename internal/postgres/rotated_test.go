package postgres_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-58: the password is changed, and the passfile with it, while a pool is open.
func TestOpen_readsThePassfileAtEachConnect(t *testing.T) {
	db := testdb.NewEmpty(t)
	role := db.Name + "_rotated"
	db.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'first'`)
	t.Cleanup(func() { db.Exec(`DROP ROLE ` + role) })
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	passfile := filepath.Join(t.TempDir(), "passfile")
	rotate := func(password string) {
		line := fmt.Sprintf("%s:%s:*:%s:%s\n", dsn.Hostname(), dsn.Port(), role, password)
		if err := os.WriteFile(passfile, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotate("first")
	dsn.User = url.User(role)
	query := dsn.Query()
	query.Set("passfile", passfile)
	dsn.RawQuery = query.Encode()
	pool, err := postgres.Open(t.Context(), dsn.String(), "walpost/test")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db.Exec(`ALTER ROLE ` + role + ` PASSWORD 'second'`)
	rotate("second")
	pool.Reset()
	var one int
	if err := pool.QueryRow(t.Context(), `SELECT 1`).Scan(&one); err != nil {
		t.Errorf("after the password was rotated: %v", err)
	}
}

// S-58: role and password are changed, and the file with the connection string, while a pool is open.
func TestOpen_readsAConnectionStringInAFileAtEachConnect(t *testing.T) {
	db := testdb.NewEmpty(t)
	at, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dsn")
	write := func(role string) string {
		db.Exec(`CREATE ROLE ` + role + ` LOGIN REPLICATION PASSWORD '` + role + `-secret'`)
		t.Cleanup(func() { db.Exec(`DROP ROLE ` + role) })
		dsn := *at
		dsn.User = url.UserPassword(role, role+"-secret")
		if err := os.WriteFile(file, []byte(dsn.String()+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return dsn.String()
	}
	first, second := db.Name+"_first", db.Name+"_second"
	dsn := safefile.Live(file, write(first))
	pool, err := postgres.Open(t.Context(), dsn, "walpost/test")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	users := func() (users [3]string) {
		t.Helper()
		pool.Reset()
		if err := pool.QueryRow(t.Context(), `SELECT session_user::text`).Scan(&users[0]); err != nil {
			t.Errorf("pool: %v", err)
		}
		direct, err := postgres.DirectConfig(dsn, "walpost/test")
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := pgx.ConnectConfig(t.Context(), direct); err != nil {
			t.Errorf("direct session: %v", err)
		} else {
			users[1] = conn.Config().User
			conn.Close(t.Context())
		}
		replication, err := postgres.ReplicationConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := pgconn.ConnectConfig(t.Context(), replication); err != nil {
			t.Errorf("replication: %v", err)
		} else {
			users[2] = replication.User
			conn.Close(t.Context())
		}
		return users
	}
	if got, want := users(), [3]string{first, first, first}; got != want {
		t.Errorf("at the start: %q, want %q", got, want)
	}
	write(second)
	db.Exec(`ALTER ROLE ` + first + ` NOLOGIN`)
	if got, want := users(), [3]string{second, second, second}; got != want {
		t.Errorf("after the change: %q, want %q", got, want)
	}
	for _, role := range []string{first, second} {
		if got := postgres.Mask(fmt.Errorf("no: %s-secret", role), dsn).Error(); got != "no: xxxxx" {
			t.Errorf("the password of %s is shown: %s", role, got)
		}
	}
	// Where to stays: the tables of another database would not be those of the slot.
	elsewhere := *at
	elsewhere.User, elsewhere.Path = url.UserPassword(second, second+"-secret"), "/postgres"
	if err := os.WriteFile(file, []byte(elsewhere.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if config, err := postgres.ConnConfig(dsn); err != nil || config.Database != db.Name {
		t.Errorf("database %q, %v, want %q", config.Database, err, db.Name)
	}
	// A file that is gone says what it said at the start.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if config, err := postgres.ConnConfig(dsn); err != nil || config.User != first {
		t.Errorf("without the file: user %q, %v, want %q", config.User, err, first)
	}
}
