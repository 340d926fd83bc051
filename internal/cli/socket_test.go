package cli

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-01: a relay on a socket lets its user change something, and the commands find it there.
func TestProgram_changesOverASocketAlone(t *testing.T) {
	db := testdb.New(t)
	path := filepath.Join(t.TempDir(), "ops.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}) // as a killed process leaves it
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name, "WALPOST_OPS_LISTEN": "unix:" + path}
	relay := start(t, nil, env, "relay", "--log-format=json")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	post := func(connection net.Conn, err error) (*http.Response, error) {
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { connection.Close() })
		request, _ := http.NewRequest("POST", "http://walpost/v1/subscribers/analytics/pause", strings.NewReader(`{"why": "maintenance"}`))
		request.Header.Set("Content-Type", "application/json")
		if err := request.Write(connection); err != nil {
			return nil, err
		}
		return http.ReadResponse(bufio.NewReader(connection), request)
	}
	if response, err := post(net.Dial("unix", path)); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("a pause over the socket: %v, %v", response, err)
	}
	if got := db.Text(`SELECT state FROM walpost.subscribers WHERE name = 'analytics'`); got != "paused" {
		t.Errorf("analytics is %s", got)
	}
	code, stdout, stderr := execute(t, env, "status")
	if code != exitFine || !strings.Contains(stdout, "The relay is streaming") {
		t.Errorf("status ends with %d: %s%s", code, stdout, stderr)
	}
	relay.stop()
	if got := <-relay.exited; got != exitFine {
		t.Errorf("the relay ends with %d", got)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there after the stop")
	}
}
