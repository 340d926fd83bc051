//go:build outside

package doctor_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/testdb"
)

// F-67 with PgBouncer itself, which the machine must have; .ci/run installs it.
func TestOutside_PgBouncerCarriesAllButTheStream(t *testing.T) {
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			h := newHarnessOn(t, nil, testdb.New(t))
			direct := h.db.DSN
			h.options.DatabaseURL = pgbouncer(t, direct, mode)
			h.wantsADirectConnection(direct)
			h.db.Exec("INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')")
			h.relay() // with its SQL through the pooler
			h.relay() // another one asks the same of sessions that are not its own
		})
	}
}

// pgbouncer starts one in front of the server and returns the connection string that leads through it.
func pgbouncer(t *testing.T, dsn, mode string) string {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	file := filepath.Join(t.TempDir(), "pgbouncer.ini")
	ini := fmt.Sprintf(`[databases]
%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s password=%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = any
pool_mode = %[7]s
`, config.Database, config.Host, config.Port, config.User, config.Password, port, mode)
	if err := os.WriteFile(file, []byte(ini), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{file}
	if os.Geteuid() == 0 {
		args = []string{"-u", "nobody", file} // it refuses to stay root
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "pgbouncer", args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: apt-get install pgbouncer", err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(said.String())
		}
	})
	through := fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", port, config.User, config.Database)
	h := harness{t: t}
	h.await("pgbouncer answers", func() bool {
		conn, err := pgx.Connect(t.Context(), through)
		if err != nil {
			return false
		}
		return conn.Close(t.Context()) == nil
	})
	return through
}
