package nats_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// S-409. The program begins with a wrong password and without a stream. What is wrong stands in /progress, the doctor says it too,
// nothing becomes a dead letter but the event that is too large, and all arrives when it is put right.
func TestNATS_waitsInTheProgramAndSaysForWhat(t *testing.T) {
	s := natstest.StartWithLogin(t, asAdmin, limit, fmt.Sprintf(`authorization { users = [ {user: admin, password: admin}, {user: walpost, password: %q} ] }`, password))
	db := testdb.New(t)
	db.Exec(`CREATE TABLE outbox_events (seq bigserial PRIMARY KEY, event_type text NOT NULL, payload jsonb NOT NULL,
		delivered boolean NOT NULL DEFAULT false, delivered_at timestamptz)`)
	folder := t.TempDir()
	const wrong = "an0ther-0ne-by-far"
	write(t, filepath.Join(folder, "password"), wrong)
	file := filepath.Join(folder, "walpost.yaml")
	write(t, file, fmt.Sprintf(`
slot: %s
sources: [{name: thoughts, table: public.outbox_events, columns: {key: payload.k}}]
subscribers:
  - name: nats
    servers: ["%s"]
    subject: "thoughts.{type}"
    auth: {user: walpost, password: {file: password}}
    retry: {max: 500ms}
    timeout: 3s
`, db.Name, s.Address()))
	env := []string{"WALPOST_DATABASE_URL=" + db.DSN}
	relay := testprogram.Start(t, env, "relay", "--config="+file, "--ops-listen=127.0.0.1:0")
	ops := relay.AwaitStreaming()
	says := func(what string) func() bool {
		return func() bool {
			response, err := http.Get(ops + "/progress")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(string(text), what)
		}
	}
	insert := func(eventType, key string, size int) {
		db.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ($1, jsonb_build_object('k', $2::text, 'pad', repeat('x', $3)))`, eventType, key, size)
	}
	insert("late", "a", 10)
	testprogram.Eventually(t, "/progress to have the server's words", says("Authorization Violation"))
	write(t, filepath.Join(folder, "password"), password)
	testprogram.Eventually(t, "/progress to name the subject", says("no stream captures subject thoughts.late"))
	doctor := exec.Command(testprogram.Binary(t), "doctor", "--config="+file)
	doctor.Env = append(os.Environ(), env...)
	if output, _ := doctor.CombinedOutput(); !strings.Contains(string(output), "no stream captures thoughts.>") {
		t.Errorf("the doctor says\n%s", output)
	}
	s.Stream(t, jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}})
	insert("made", "b", 10)
	insert("made", "c", 2*maxPayload)
	insert("made", "d", 10)
	testprogram.Eventually(t, "all marks but one", func() bool {
		return db.Int(`SELECT count(*) FROM outbox_events WHERE NOT delivered OR delivered_at IS NULL`) == 1
	})
	testprogram.Eventually(t, "the large one to be dead", func() bool { return debttest.Dead(db) == 1 })
	if reason := db.Text(`SELECT error FROM walpost.owed WHERE state = 'dead'`); !strings.Contains(reason, "the message has 200") || !strings.Contains(reason, "the server takes 100000 (max_payload)") {
		t.Errorf("its reason is %q, want both sizes", reason)
	}
	if got := len(s.Messages(t, "thoughts")); got != 3 {
		t.Errorf("the stream has %d messages, want 3", got)
	}
	relay.Stop()
	for _, text := range []string{relay.Output(), db.Text(`SELECT coalesce(string_agg(error, ' '), '') FROM walpost.owed`)} {
		if strings.Contains(text, wrong) || strings.Contains(text, password) {
			t.Error("a password is shown")
		}
	}
}
