package doctor_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-67 and F-45: database_url may lead through a pooler, the stream and the leadership may not. The two ways
// of poolers are played here as PgBouncer has them; pooler_real_test.go has PgBouncer itself.
func TestDoctor_wantsADirectConnectionForTheStream(t *testing.T) {
	t.Parallel()
	for name, refuses := range map[string]bool{"refuses replication, as PgBouncer before 1.23": true, "passes it on, as later ones": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarnessOn(t, nil, testdb.New(t))
			direct := h.db.DSN
			h.options.DatabaseURL = pooler(t, direct, refuses)
			h.wantsADirectConnection(direct)
		})
	}
}

// wantsADirectConnection checks what is said of a database_url that leads through a pooler, and fixes it.
func (h *harness) wantsADirectConnection(direct string) {
	t := h.t
	t.Helper()
	report := doctor.Run(t.Context(), h.options)
	if f := find(report, "connection"); f.Finding != "connected, through a pooler" {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	if f := find(report, "replication-connection"); f.Level != doctor.Problem || !strings.Contains(f.Finding, "through a pooler") || !strings.Contains(f.Fix.Do, "WALPOST_REPLICATION_URL") {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	h.options.ReplicationURL = direct
	for _, f := range doctor.Run(t.Context(), h.options).Findings {
		if f.Level == doctor.Problem || f.Level == doctor.Unknown && f.Check != "standby-sync" {
			t.Errorf("with a direct connection for the stream the doctor says%s", describe([]doctor.Finding{f}))
		}
	}
}

// pooler listens in front of the server. It gives out keys for cancelling of its own, as poolers do.
func pooler(t *testing.T, dsn string, refuses bool) string {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
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
			go pool(client, config, refuses)
		}
	}()
	address := listener.Addr().(*net.TCPAddr)
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=%s sslmode=disable", address.Port, config.User, config.Password, config.Database)
}

// pool carries one client until either side ends.
func pool(client net.Conn, config *pgconn.Config, refuses bool) {
	defer client.Close()
	startup, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	if err != nil {
		return
	}
	parameters := startup.(*pgproto3.StartupMessage)
	if _, replication := parameters.Parameters["replication"]; replication && refuses {
		refusal, _ := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication"}).Encode(nil)
		_, _ = client.Write(refusal)
		return
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer server.Close()
	message, err := parameters.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(message); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		if head[0] == 'K' { // BackendKeyData: process id, secret
			binary.BigEndian.PutUint32(body, 4_000_000)
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return
		}
	}
}

// A pooler passes settings on in the startup packet, or as a SET; the server then says "client" or "session".
func TestDoctor_sendsAPersonToThePoolerForWhatTheSessionSets(t *testing.T) {
	for _, source := range []string{"client", "session"} {
		if fix := doctor.FixOf(source); len(fix.SQL) > 0 || !strings.Contains(fix.Do, "pooler") {
			t.Errorf("what is set by the %s is to be fixed by %+v", source, *fix)
		}
	}
}
