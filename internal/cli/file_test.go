package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/testdb"
)

// The whole program appends to a file: in the order of the commits, nothing missing after a torn line, and the
// disk that is away makes no dead letter.
func TestProgram_appendsToAFile(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	folder := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "events.ndjson")
	subscriber := "  - {name: archive, kind: file, path: " + path + ", ordering: total, stall_after: 1s, retry: {initial: 20ms, max: 100ms}}"
	insert := func(from, to int) {
		db.Exec(fmt.Sprintf(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
			SELECT 'e' || n, 'any', 'k' || n %% 7, jsonb_build_object('n', n) FROM generate_series(%d, %d) n`, from, to))
	}
	written := func() (ids []string) {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for text := range strings.Lines(string(content)) {
			var line struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				return nil // the last one is being written
			}
			if !slices.Contains(ids, line.ID) {
				ids = append(ids, line.ID)
			}
		}
		return ids
	}
	var want []string
	wait := func(n int) {
		t.Helper()
		for i := len(want); i < n; i++ {
			want = append(want, fmt.Sprint("e", i+1))
		}
		waitFor(t, fmt.Sprint(n, " lines"), func() bool { return slices.Equal(written(), want) })
	}
	relay := startHooks(t, db, subscriber)
	insert(1, 50)
	wait(50)
	// The disk goes, and comes back.
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	insert(51, 60)
	waitFor(t, "the debt", func() bool { return debttest.Waiting(db) == 10 })
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	wait(60)
	relay.stop()
	<-relay.exited
	// What a crash leaves behind.
	torn, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := torn.WriteString(`{"id":"e61","source":"less`); err != nil {
		t.Fatal(err)
	}
	torn.Close()
	insert(61, 70)
	again := startHooks(t, db, subscriber)
	wait(70)
	waitFor(t, "every mark", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
	if n := debttest.Dead(db); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	again.stop()
	<-again.exited

	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}
	file := configFile(t, "subscribers:\n"+subscriber+"\n")
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	if _, stdout, _ := execute(t, env, "doctor", "--config="+file); !strings.Contains(stdout, "archive: its destination takes nothing now") {
		t.Errorf("the doctor says\n%s", stdout)
	}
}

func TestConfig_refusesAKeyOfAnotherKind(t *testing.T) {
	t.Chdir(t.TempDir())
	file := configFile(t, "subscribers:\n  - name: archive\n    kind: file\n    path: /tmp/x\n    url: https://x.example\n  - {name: analytics, allow_private: false}\n")
	code, _, stderr := execute(t, map[string]string{"WALPOST_DATABASE_URL": "postgres://x@h/d"}, "config", "--config="+file)
	for _, want := range []string{`:5: subscriber "archive": url: kind file has no such key; these have: webhook`, `:6: subscriber "analytics": allow_private: kind analytics has no such key`} {
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, says\n%s\nwant %q", code, stderr, want)
		}
	}
}
