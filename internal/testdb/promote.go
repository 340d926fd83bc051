package testdb

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/pgserver"
)

// NewStandby returns a streaming standby of a server that the test made with NewServer, which restarts for
// it. The settings come on top of those of NewServer and must name what the primary was given beyond them.
func NewStandby(t testing.TB, primary *pgserver.Server, settings map[string]string) *pgserver.Server {
	t.Helper()
	all := maps.Clone(serverSettings)
	maps.Copy(all, settings)
	standby, err := primary.Standby(t.Context(), pgserver.Options{Settings: all})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, standby)
	return standby
}

// Standby lets a server that is down come up as a standby of its own WAL. Without slots it is one to which
// none was copied, as all were before Postgres 17.
func Standby(t testing.TB, server *pgserver.Server, slots bool) {
	t.Helper()
	data := filepath.Join(server.Dir(), "data")
	if !slots {
		entries, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if err := os.RemoveAll(entry); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Promote is Standby and the promotion: the server that remains has another timeline.
func Promote(t testing.TB, server *pgserver.Server, slots bool) {
	t.Helper()
	Standby(t, server, slots)
	admin(t, t.Context(), server.DSN("postgres"), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_promote()`) // waits until it is done
		return err
	})
}
