package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
)

// docsMetrics is absolute before any test changes the folder.
var docsMetrics, _ = filepath.Abs("../../docs/metrics.md")

func emptyDatabase(t *testing.T) string { return testdb.NewEmpty(t).DSN }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-User-ID", "42")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// asCurl sends what a curl line of a shell would send, with the shell alone: a bare machine has no curl. It knows -X,
// -H and -d.
func asCurl(t *testing.T, line string) (status int, answer string) {
	t.Helper()
	words, err := exec.CommandContext(t.Context(), "sh", "-c", `curl() { for word; do printf '%s\0' "$word"; done; }; `+line).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	method, url, body, header := http.MethodGet, "", "", http.Header{}
	args := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-X":
			i++
			method = args[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(args[i], ":")
			header.Add(name, strings.TrimSpace(value))
		case "-d":
			i++
			body = args[i]
		default:
			url = args[i]
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// printed finds what the demo printed for people to use.
func printed(t *testing.T, demo *program, pattern string) string {
	t.Helper()
	var found []string
	waitFor(t, "the demo to print "+pattern, func() bool {
		found = regexp.MustCompile(pattern).FindStringSubmatch(demo.stdout.String())
		return found != nil
	})
	return found[1]
}

func TestDemo_reactsToItsCurlLineAndLeavesNothingBehind(t *testing.T) {
	t.Chdir(t.TempDir())
	demo := start(t, nil, nil, "demo", "--no-traffic", "--api-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0")
	curl := printed(t, demo, `(?m)^  (curl -X PUT .*)$`)
	ops := printed(t, demo, `Metrics +(http://\S+)/metrics`)
	api := printed(t, demo, `API +(http://\S+)/docs`)
	dsn := printed(t, demo, `psql '(\S+)'`)
	waitFor(t, "the relay to be ready", func() bool { status, _ := get(t, ops+"/ready"); return status == http.StatusOK })

	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("the printed psql line does not connect: %v", err)
	}
	var committed string // the commit lies behind it
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&committed); err != nil {
		t.Fatal(err)
	}
	if status, answer := asCurl(t, curl); status != http.StatusOK {
		t.Fatalf("the printed line answers %d, %s", status, answer)
	}
	waitFor(t, "the achievement", func() bool {
		_, body := get(t, api+"/api/achievements")
		return strings.Contains(body, "first_lesson")
	})
	waitFor(t, "all effects, the mark and the confirm", func() bool {
		var done bool
		err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM analytics_events) = 1 AND (SELECT count(*) FROM notifications) = 1
			AND (SELECT count(*) FROM recommendations) = 1 AND (SELECT count(*) FROM outbox WHERE published_at IS NOT NULL) = 1
			AND (SELECT confirmed_flush_lsn > $1::pg_lsn FROM pg_replication_slots)`, committed).Scan(&done)
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	conn.Close(t.Context())
	waitFor(t, "the progress to count it", func() bool {
		_, body := get(t, ops+"/progress")
		var progress struct{ Subscribers []struct{ Delivered int } }
		if err := json.Unmarshal([]byte(body), &progress); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, s := range progress.Subscribers {
			sum += s.Delivered
		}
		return sum == 4
	})

	demo.stop()
	if code := <-demo.exited; code != exitFine {
		t.Errorf("exit code %d, want %d: %s", code, exitFine, demo.stderr.String())
	}
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		conn.Close(t.Context())
		t.Error("the private Postgres is still there after the stop")
	}
	if _, err := http.Get(ops + "/live"); err == nil {
		t.Error("the ops port is still open after the stop")
	}
}

func TestDemo_makesTrafficByItself(t *testing.T) {
	t.Chdir(t.TempDir())
	demo := start(t, nil, nil, "demo", "--rate=200", "--api-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0")
	ops := printed(t, demo, `Metrics +(http://\S+)/metrics`)
	delivered := regexp.MustCompile(`walpost_deliveries_total{outcome="delivered",subscriber="analytics"} (\d{3,})`)
	var metrics string
	waitFor(t, "a hundred deliveries", func() bool {
		_, metrics = get(t, ops+"/metrics")
		return delivered.MatchString(metrics)
	})
	wantDocumented(t, metrics)
	wantNative(t, ops+"/metrics")
	demo.stop()
	if code := <-demo.exited; code != exitFine {
		t.Errorf("exit code %d, want %d: %s", code, exitFine, demo.stderr.String())
	}
}
