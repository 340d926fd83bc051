package cli

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// startUnread starts a relay whose log is a pipe that no one reads. It returns the other end of the pipe.
func startUnread(t *testing.T, db *testdb.DB) (relay *exec.Cmd, log *os.File, ops string) {
	t.Helper()
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	ops = freeAddress(t)
	relay = exec.Command(testprogram.Binary(t), "relay", "--slot="+db.Name, "--ops-listen="+ops, "--log-level=debug", "--drain=2s")
	relay.Dir = t.TempDir()
	relay.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+db.DSN)
	relay.Stderr = stderr
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	stderr.Close()
	t.Cleanup(func() {
		_ = relay.Process.Kill()
		_ = relay.Wait()
	})
	return relay, log, "http://" + ops
}

// insertLessons writes completions that the four subscribers of the learning platform understand.
func insertLessons(db *testdb.DB, prefix string, n int) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT $1 || n, 'lesson.completed', (n % 50)::text, jsonb_build_object('event_id', $1 || n, 'type', 'lesson.completed',
		    'correlation_id', 'c', 'occurred_at', '2026-01-01T00:00:00Z', 'user_id', 1 + n % 50, 'lesson_id', n,
		    'track_slug', 'go', 'lesson_slug', 'l-' || n) FROM generate_series(1, $2::int) n`, prefix, n)
}

// metric reads a metric without labels.
func metric(t *testing.T, ops, name string) (value float64) {
	t.Helper()
	answer, err := http.Get(ops + "/metrics")
	if err != nil {
		return -1
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			if _, err := fmt.Sscan(text, &value); err != nil {
				t.Fatalf("metric %s: %v", name, err)
			}
			return value
		}
	}
	return -1
}

// S-50: the log is a pipe that is open and not read. Deliveries, confirms and the stop go on without it.
func TestProgram_deliversAndStopsWhileItsLogIsNotRead(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	relay, log, ops := startUnread(t, db)
	testprogram.Eventually(t, "the relay to serve", func() bool { return metric(t, ops, "walpost_leader") == 1 })
	insertLessons(db, "unread-", 3000)
	testprogram.AwaitPublished(t, db, time.Minute)
	insertLessons(db, "more-", 2000)
	testprogram.AwaitPublished(t, db, time.Minute)
	testprogram.Eventually(t, "dropped lines to be counted", func() bool { return metric(t, ops, "walpost_log_lines_dropped_total") > 0 })

	// It is read again: the log says what is missing.
	said := make(chan string)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "lines of this log are missing here") {
				said <- lines.Text()
				return
			}
		}
	}()
	insertLessons(db, "read-", 10)
	select {
	case line := <-said:
		if !strings.Contains(line, `"dropped":`) {
			t.Errorf("the log says %s, want how many", line)
		}
	case <-time.After(time.Minute):
		t.Fatal("the log never says that lines are missing")
	}
	<-reading

	// No one reads it once more, and then it is to stop.
	insertLessons(db, "last-", 3000)
	testprogram.AwaitPublished(t, db, time.Minute)
	wantStop(t, relay, 2*time.Second+5*time.Second, 0)
}

// S-50: the process at the other end of the pipe has ended: that is no reason to end, too.
func TestProgram_survivesTheEndOfItsLog(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	relay, log, ops := startUnread(t, db)
	testprogram.Eventually(t, "the relay to serve", func() bool { return metric(t, ops, "walpost_leader") == 1 })
	log.Close()
	insertLessons(db, "after-", 50)
	testprogram.AwaitPublished(t, db, time.Minute)
	testprogram.Eventually(t, "dropped lines to be counted", func() bool { return metric(t, ops, "walpost_log_lines_dropped_total") > 0 })
	wantStop(t, relay, 2*time.Second+5*time.Second, 0)
}

// wantStop sends SIGTERM and checks that the process ends in time with the code.
func wantStop(t *testing.T, process *exec.Cmd, limit time.Duration, code int) {
	t.Helper()
	begin := time.Now()
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = process.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the process has not ended a minute after SIGTERM")
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("the stop took %s, want at most %s", took, limit)
	}
	if got := process.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
}
