package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// S-51: a server that hangs, a receiver that hangs, and a log that is not read, alone and together. The stop ends
// within its one deadline, and says what could not be recorded.
func TestProgram_stopsInTimeWhateverHangs(t *testing.T) {
	t.Parallel()
	const drain = 2 * time.Second
	for _, test := range []struct {
		name                     string
		server, receiver, unread bool
		code                     int
		says                     []string
	}{
		{name: "receiver", receiver: true},
		{name: "server and receiver", server: true, receiver: true, code: 1, says: []string{`subscriber \"billing\"`, "come again"}},
		{name: "server", server: true, code: 1, says: []string{"it comes again"}},
		{name: "server, receiver and log", server: true, receiver: true, unread: true, code: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := testdb.NewServer(t, nil)
			db := testdb.On(t, server)
			hang := make(chan struct{})
			t.Cleanup(func() { close(hang) })
			called := make(chan struct{}, 100)
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				called <- struct{}{}
				if test.receiver {
					select {
					case <-hang:
					case <-r.Context().Done():
					}
				}
			}))
			t.Cleanup(receiver.Close)
			folder := t.TempDir()
			file := filepath.Join(folder, "walpost.yaml")
			config := fmt.Sprintf(`
sources: [{name: lessons, table: public.outbox}]
subscribers:
  - {name: billing, kind: webhook, url: %q, secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_private: true, timeout: 1m}
`, receiver.URL)
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			ops := freeAddress(t)
			relay := exec.Command(testprogram.Binary(t), "relay", "--config="+file, "--ops-listen="+ops, fmt.Sprintf("--drain=%v", drain), "--log-level=debug")
			relay.Dir = folder
			relay.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+db.DSN)
			var stderr bytes.Buffer
			relay.Stderr = &stderr
			if test.unread {
				unread, end, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer unread.Close()
				defer end.Close()
				filler := make([]byte, 1<<16)
				if _, err := end.Write(filler); err != nil { // now it is full
					t.Fatal(err)
				}
				relay.Stderr = end
			}
			if err := relay.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = relay.Process.Kill() })
			testprogram.Eventually(t, "the relay to stream", func() bool { return metric(t, "http://"+ops, "walpost_leader") == 1 })
			// A lock keeps what is delivered from being recorded, so that there is something to name.
			locked, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer locked.Rollback(t.Context())
			if _, err := locked.Exec(t.Context(), `LOCK TABLE walpost.slots IN SHARE MODE`); err != nil {
				t.Fatal(err)
			}
			db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('e-1', 'lesson.completed', 'a', '{}')`)
			<-called
			if test.server {
				if err := server.Freeze(); err != nil {
					t.Fatal(err)
				}
				defer server.Thaw()
			} else if err := locked.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantStop(t, relay, drain+5*time.Second, test.code)
			for _, want := range test.says {
				if said := stderr.String(); !strings.Contains(said, strings.ReplaceAll(want, `\"`, `"`)) && !strings.Contains(said, want) {
					t.Errorf("it says %s\nwant %s in it", said[max(0, len(said)-2000):], want)
				}
			}
			if test.server {
				if err := server.Thaw(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
