package postgres_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/backendstart/walpost/internal/postgres"
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
