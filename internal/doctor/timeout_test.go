package doctor_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// The doctor has no word on wal_sender_timeout, and is right: wherever it is set, the session of the stream has its
// own, and a handler may take longer than the server would wait.
func TestHandlerTimeout_isNoMatterOfWalSenderTimeout(t *testing.T) {
	t.Parallel()
	server := newServerWithArguments(t)
	db := testdb.On(t, server)
	h := newHarnessOn(t, server, db)
	role := h.role("SUPERUSER REPLICATION")
	asRole := h.options.DatabaseURL
	timeout := func(config *pgconn.Config) string {
		t.Helper()
		conn, err := pgconn.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		results, err := conn.Exec(t.Context(), "SHOW wal_sender_timeout").ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return string(results[0].Rows[0][0])
	}
	for _, form := range []struct {
		name       string
		seed, undo func(*harness)
	}{
		{"the configuration", set("wal_sender_timeout", "'1s'", false), nil},
		{"the command line", arguments("-c wal_sender_timeout=1s"), arguments("")},
		{"all roles", run("ALTER ROLE ALL SET wal_sender_timeout = '1s'"), run("ALTER ROLE ALL RESET wal_sender_timeout")},
		{"the database", run("ALTER DATABASE {db} SET wal_sender_timeout = '1s'"), run("ALTER DATABASE {db} RESET wal_sender_timeout")},
		{"the role", run("ALTER ROLE " + role + " SET wal_sender_timeout = '1s'"), run("ALTER ROLE " + role + " RESET wal_sender_timeout")},
		{"the role in the database", run("ALTER ROLE " + role + " IN DATABASE {db} SET wal_sender_timeout = '1s'"),
			run("ALTER ROLE " + role + " IN DATABASE {db} RESET wal_sender_timeout")},
		{"options of the connection", func(h *harness) { h.options.DatabaseURL += "&options=-c%20wal_sender_timeout%3D1s" }, nil},
		{"a parameter of the connection", func(h *harness) { h.options.DatabaseURL += "&wal_sender_timeout=1s" }, nil},
	} {
		t.Run(form.name, func(t *testing.T) {
			h := newHarnessOn(t, server, db)
			h.options.DatabaseURL = asRole
			form.seed(h)
			if form.undo != nil {
				t.Cleanup(func() { form.undo(h) })
			}
			plain, err := postgres.ConnConfig(h.options.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := postgres.ReplicationConfig(h.options.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := timeout(&plain.Config), "1s"; got != want {
				t.Fatalf("a session that pins nothing has %s, want %s", got, want)
			}
			if got, want := timeout(stream), "10s"; got != want {
				t.Errorf("the session of the stream has %s, want %s", got, want)
			}
			if found := h.check("handler-timeout"); found[0].Level != doctor.OK {
				t.Errorf("the doctor says%s", describe(found))
			}
		})
	}
}
