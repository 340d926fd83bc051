//go:build outside

package kafka_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) { os.Exit(testprogram.Main(m)) }

// waitsInTheProgram starts the program with a topic that does not exist and a wrong password. What is wrong stands in
// /progress, nothing becomes a dead letter but the event that is too large, and all arrives when it is put right.
func waitsInTheProgram(t *testing.T, b *kafkatest.Broker) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE shop (id bigserial PRIMARY KEY, topic text, type text, key text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("password", "an0ther-0ne-by-far")
	config := write("walpost.yaml", fmt.Sprintf(`
sources: [{name: shop, table: public.shop, columns: {key: key}}]
subscribers:
  - name: kafka
    brokers: ["%s"]
    sasl: {mechanism: plain, user: %s, password: {file: password}}
    retry: {max: 500ms}
    timeout: 3s
`, b.Auth(), kafkatest.User))
	relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+config, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
	ops := relay.AwaitStreaming()
	progress := func() string {
		response, err := http.Get(ops + "/progress")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	says := func(what string) func() bool { return func() bool { return strings.Contains(progress(), what) } }
	missing := "program-" + db.Name
	insert := func(topic, key string, size int) {
		db.Exec(`INSERT INTO shop (topic, type, key, payload) VALUES ($1, 'order.placed', $2, jsonb_build_object('pad', repeat('x', $3)))`, topic, key, size)
	}
	insert(missing, "a", 10)
	testprogram.Eventually(t, "/progress to have the broker's words", says("Invalid username or password"))
	write("password", kafkatest.Password)
	testprogram.Eventually(t, "/progress to name the topic", says("topic "+missing+" does not exist"))
	o := newTopic(t, b, nil)
	insert(o.name, "b", 10)
	insert(o.name, "c", 2*maxMessage)
	insert(o.name, "d", 10)
	testprogram.Eventually(t, "the events of other topics", func() bool { return len(o.Received(t)) == 2 })
	testprogram.Eventually(t, "the large one to be dead", func() bool { return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`) == 1 })
	if reason := db.Text(`SELECT error FROM walpost.owed WHERE state = 'dead'`); !strings.Contains(reason, "takes 100000") || !strings.Contains(reason, "the record has 200") {
		t.Errorf("its reason is %q, want both sizes", reason)
	}
	b.Topic(t, missing, 3)
	testprogram.Eventually(t, "the event of the topic that is there now", func() bool { return len(b.Records(t, missing)) == 1 })
	testprogram.Eventually(t, "all marks but one", func() bool { return db.Int(`SELECT count(*) FROM shop WHERE published_at IS NULL`) == 1 })
	// A person raises the limit and sends the dead letter again.
	raised := strconv.Itoa(4 * maxMessage)
	if _, err := b.Admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &raised}}, o.name); err != nil {
		t.Fatal(err)
	}
	redrive := exec.Command(testprogram.Binary(t), "owed", "redrive", "--subscriber=kafka", "--yes", "--why=the limit is raised", "--config="+config, "--slot="+db.Name) //nolint:gosec // the program is ours
	redrive.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+db.DSN)
	if output, err := redrive.CombinedOutput(); err != nil {
		t.Errorf("redrive: %v\n%s", err, output)
	}
	testprogram.Eventually(t, "the large one to arrive", func() bool { return len(o.Received(t)) == 3 })
	testprogram.Eventually(t, "the last mark", func() bool { return db.Int(`SELECT count(*) FROM shop WHERE published_at IS NULL`) == 0 })
	relay.Stop()
	for _, text := range []string{relay.Output(), db.Text(`SELECT coalesce(string_agg(error, ' '), '') FROM walpost.owed`)} {
		if strings.Contains(text, "an0ther-0ne-by-far") || strings.Contains(text, kafkatest.Password) {
			t.Error("a password is shown")
		}
	}
}

// A broker that hangs delays no other subscriber, and a stop does not wait for it: what is open is recorded as owed, and the
// next relay brings it.
func stopsWhileTheBrokerHangs(t *testing.T, b *kafkatest.Broker) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE shop (id bigserial PRIMARY KEY, type text, key text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	o := newTopic(t, b, nil)
	config, file := filepath.Join(t.TempDir(), "walpost.yaml"), filepath.Join(t.TempDir(), "events.ndjson")
	text := fmt.Sprintf(`
drain: 2s
sources: [{name: shop, table: public.shop, columns: {key: key}}]
subscribers:
  - {name: kafka, brokers: ["%s"], topic: %s, retry: {max: 500ms}}
  - {name: file, path: %s}
`, b.Address(), o.name, file)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *testprogram.Process {
		relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+config, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
		relay.AwaitStreaming()
		return relay
	}
	insert := func(n int) {
		db.Exec(`INSERT INTO shop (type, key, payload) SELECT 'order.placed', 'k' || n % 7, jsonb_build_object('n', n) FROM generate_series(1, $1) n`, n)
	}
	relay := start()
	insert(100)
	testprogram.Eventually(t, "the first events", func() bool { return len(o.Received(t)) == 100 })
	thaw := b.Freeze(t)
	defer thaw()
	insert(1000)
	testprogram.Eventually(t, "the file to have all while the broker hangs", func() bool {
		lines, err := os.ReadFile(file)
		return err == nil && bytes.Count(lines, []byte("\n")) == 1100
	})
	testprogram.Pause(t, time.Second)
	t.Logf("stopped in %s", relay.Stop())
	thaw()
	relay = start()
	testprogram.Eventually(t, "all marks", func() bool { return db.Int(`SELECT count(*) FROM shop WHERE published_at IS NULL`) == 0 })
	relay.Stop()
	seen, last := map[string]bool{}, map[string]int{}
	for _, r := range o.Received(t) {
		n, err := strconv.Atoi(r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		if n < last[r.Key] {
			t.Errorf("key %s: %d comes after %d", r.Key, n, last[r.Key])
		}
		last[r.Key] = n
	}
	if len(seen) != 1100 {
		t.Errorf("%d have arrived, want 1100", len(seen))
	}
}
