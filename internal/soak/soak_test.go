//go:build soak

// Package soak holds the long tests of the whole program: many rounds of kills and stops, long outages,
// large transactions. They run by "make soak" at their full numbers, or in fewer rounds with
// WALPOST_ROUNDS, and print what they measured. Relay and API are processes of their own; where a test
// needs a subscriber that misbehaves on demand, the process is this test binary with one more kind of
// subscriber (ledger_test.go), else the real program.
package soak

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/cli"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// programVariable makes walpost of this binary.
const programVariable = "WALPOST_SOAK_PROGRAM"

func TestMain(m *testing.M) {
	natstest.Main()
	if os.Getenv(programVariable) != "" {
		os.Exit(program())
	}
	os.Exit(testprogram.Main(m))
}

// program is cmd/walpost with the kind "ledger".
func program() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	kinds := app.Subscribers()
	kinds["ledger"] = app.Kind{New: func(r app.Resources) (subscriber.Subscriber, error) {
		return &ledger{name: r.Config.Name, pool: r.Pool}, nil
	}}
	return cli.Main(ctx, cli.Process{
		Args: os.Args[1:], Lookup: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr, Subscribers: kinds,
	})
}

// rounds is the full number, or WALPOST_ROUNDS where that is less.
func rounds(t *testing.T, full int) int {
	t.Helper()
	text := os.Getenv("WALPOST_ROUNDS")
	if text == "" {
		return full
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("WALPOST_ROUNDS is %q, want a number from 1", text)
	}
	return min(n, full)
}

// scaled is the full number, or for WALPOST_ROUNDS=n so many hundredths of it.
func scaled(t *testing.T, full int) int { return full / 100 * rounds(t, 100) }

// relayOptions are what the file of a relay with ledgers says in addition to its defaults.
type relayOptions struct {
	top         string // keys of the file, a line each
	subscribers []string
	each        string // options of every subscriber, as in {a: b, c: d}
	// databaseURL leads to the database by another way than the stream takes; "" by the same.
	databaseURL string
	// more are further options of one subscriber, beginning with a comma; nil for none.
	more func(name string) string
}

// startLedgers starts a relay whose subscribers are ledgers, and does not wait until it streams.
func startLedgers(t *testing.T, db *testdb.DB, o relayOptions) *testprogram.Process {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := o.top + "\nsubscribers:\n"
	for _, name := range o.subscribers {
		more := ""
		if o.more != nil {
			more = o.more(name)
		}
		text += fmt.Sprintf("  - {name: %s, kind: ledger, %s%s}\n", name, strings.TrimSpace(o.each), more)
	}
	env := []string{programVariable + "=1", "WALPOST_DATABASE_URL=" + db.DSN}
	if o.databaseURL != "" {
		env = []string{programVariable + "=1", "WALPOST_DATABASE_URL=" + o.databaseURL, "WALPOST_REPLICATION_URL=" + db.DSN}
	}
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return testprogram.StartBinary(t, binary, env, "relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
}

// startRelay starts the real relay with its four subscribers.
func startRelay(t *testing.T, db *testdb.DB) *testprogram.Process {
	t.Helper()
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN},
		"relay", "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
}

// startAPI starts the real API.
func startAPI(t *testing.T, db *testdb.DB) *testprogram.Process {
	t.Helper()
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "api", "--auth=dev", "--api-listen=127.0.0.1:0")
}

// ownServer is a database on a server of the test's own: huge transactions and held WAL are no one
// else's, and no checkpoint makes full pages of what is measured.
func ownServer(t *testing.T) *testdb.DB {
	t.Helper()
	return testdb.On(t, testdb.NewServer(t, map[string]string{
		"max_wal_size": "8GB", "checkpoint_timeout": "1h", "full_page_writes": "off",
	}))
}

// until runs f until the returned function is called, which waits for its end.
func until(f func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// every runs f at a steady pace until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}
