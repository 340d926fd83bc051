package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-06, S-320: whatever a receiver sends back, no secret of ours stands in what the relay stores, logs or shows.
func TestProgram_showsNoSecretThatAReceiverSendsBack(t *testing.T) {
	db := testdb.New(t)
	const token, key = "tok3n-of-ours-1234", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const inPath, inQuery = "T024BE7LD-B0xvJ3kQ9aZ", "u8Fz71qP"
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole, err := httputil.DumpRequest(r, true)
		if err != nil {
			t.Error(err)
		}
		if r.Header.Get("Webhook-Id") == "event-1" {
			w.WriteHeader(http.StatusBadRequest) // dead at once
		} else {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "I got: %s", whole)
	}))
	defer receiver.Close()
	file := configFile(t, fmt.Sprintf("subscribers:\n  - {name: hook, kind: webhook, url: '%s/hooks/%s?t=%s', allow_private: true, secret: whsec_%s, headers: {Authorization: 'Bearer %s'},"+
		" stall_after: 1s, retry: {initial: 10ms, max: 100ms}}\n", receiver.URL, inPath, inQuery, key, token))
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name, "WALPOST_CONFIG": file}
	relay := start(t, nil, env, "relay", "--ops-listen=127.0.0.1:0", "--drain=1s", "--log-format=json", "--log-level=debug")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	_, rest, _ := strings.Cut(relay.stderr.String(), `"ops":"`)
	base, _, _ := strings.Cut(rest, `"`)
	env["WALPOST_OPS_URL"] = base
	insertHookEvents(db, 1, 3)
	waitFor(t, "a dead letter and debt with a reason", func() bool {
		return debttest.Dead(db) == 1 &&
			db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND error <> ''`) > 0
	})
	shown := map[string]string{
		"the log":      relay.stderr.String(),
		"walpost.owed": db.Text(`SELECT string_agg(o::text, E'\n') FROM walpost.owed o`),
	}
	for _, path := range []string{"/progress", "/ready", "/metrics", "/v1/status", "/v1/owed", "/v1/attempts", "/v1/events/event-1"} {
		response, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		shown[path] = string(body)
	}
	for _, args := range []string{"status", "owed list", "owed show event-1", "event event-1", "config --show", "config --show --json", "doctor -v", "doctor --json"} {
		_, stdout, stderr := execute(t, env, strings.Fields(args)...)
		shown["walpost "+args] = stdout + stderr
	}
	tail := start(t, nil, env, "tail", "--event=event-1", "-n", "10000")
	waitFor(t, "the attempts in tail", func() bool { return strings.Contains(tail.stdout.String(), "event-1") })
	shown["walpost tail"] = tail.stdout.String()
	for place, text := range shown {
		for _, secret := range []string{token, key, inPath, inQuery} {
			if strings.Contains(text, secret[:8]) || strings.Contains(text, secret[len(secret)-8:]) {
				t.Errorf("%s has a secret in it: %.2000s", place, text)
			}
		}
	}
	if want := "url: ${HOOK_URL}"; !strings.Contains(shown["walpost config --show"], want) {
		t.Errorf("config --show has no %s: %s", want, shown["walpost config --show"])
	}
	for _, place := range []string{"the log", "walpost.owed", "/v1/attempts", "walpost tail"} {
		if !strings.Contains(shown[place], "I got: POST") {
			t.Errorf("%s does not say what the receiver answered: %.2000s", place, shown[place])
		}
	}
}

// S-08: a key or an error from outside steers no terminal, in tables, JSON, the log, tail and the ops API.
func TestProgram_showsNoHiddenCharacters(t *testing.T) {
	db := testdb.New(t)
	const hidden = "a\u009b2Jb\u202ec\u0085d"
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, "I say "+hidden)
	}))
	defer receiver.Close()
	file := configFile(t, "subscribers:\n"+webhookLine("hook", receiver.URL)+"\n")
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name, "WALPOST_CONFIG": file}
	relay := start(t, nil, env, "relay", "--ops-listen=127.0.0.1:0", "--drain=1s", "--log-format=json", "--log-level=debug")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	_, rest, _ := strings.Cut(relay.stderr.String(), `"ops":"`)
	base, _, _ := strings.Cut(rest, `"`)
	env["WALPOST_OPS_URL"] = base
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('event-1', $1::text, $1::text, jsonb_build_object('text', $1::text))`, hidden)
	waitFor(t, "the dead letter", func() bool { return debttest.Dead(db) == 1 })
	shown := map[string]string{}
	for _, path := range []string{"/progress", "/v1/owed", "/v1/owed/event-1", "/v1/attempts", "/v1/events/event-1"} {
		response, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		shown[path] = string(body)
	}
	for _, args := range []string{"status", "owed list", "owed list --json", "owed show event-1", "owed show event-1 --json", "event event-1", "event event-1 --json", "doctor"} {
		_, stdout, stderr := execute(t, env, strings.Fields(args)...)
		shown["walpost "+args] = stdout + stderr
	}
	for _, args := range []string{"tail", "tail --json"} {
		tail := start(t, nil, env, strings.Fields(args)...)
		waitFor(t, "the attempts in "+args, func() bool { return strings.Contains(tail.stdout.String(), "event-1") })
		shown["walpost "+args] = tail.stdout.String()
	}
	shown["the log"] = relay.stderr.String()
	for place, text := range shown {
		if strings.ContainsFunc(text, printable.IsHidden) {
			t.Errorf("%s shows a hidden character: %.1500q", place, text)
		}
	}
	for _, place := range []string{"/v1/attempts", "walpost owed show event-1 --json", "walpost tail --json"} {
		if !strings.Contains(shown[place], `a\u009b2Jb\u202ec\u0085d`) {
			t.Errorf("%s does not say which characters they are: %.1500s", place, shown[place])
		}
	}
}
