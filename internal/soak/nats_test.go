//go:build soak

package soak

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Thoughts go through the table of another service into a real NATS server, which is killed and started again, and whose
// stream is deleted and made again, while the relay is killed three times: nothing is missing, what does not fit the schema
// is dead and not marked, and of each subject and key the first occurrences come in the order of the commits.
func TestSoak_thoughtsReachNATSThroughRestartsKillsAndANewStream(t *testing.T) {
	const keys, perCommit, types = 500, 25, 3
	total := scaled(t, 50_000)
	server := natstest.Start(t)
	stream := jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}, AllowAtomicPublish: true, Duplicates: 5 * time.Second}
	server.Stream(t, stream)
	db, start := thoughtsDatabase(t, server.Address())
	relay := start()

	written := 0
	write := func(n int) { // one writer, so that the order of seq is that of the commits; every hundredth has no author
		for end := min(written+n, total); written < end; written += perCommit {
			db.Exec(`INSERT INTO outbox_events (event_type, payload)
				SELECT 'thought.written_' || k % $4, jsonb_strip_nulls(jsonb_build_object('thought_id', k, 'text', n::text,
					'author', CASE WHEN n % 100 <> 99 THEN 'a' END, 'by', CASE WHEN n % 100 = 99 THEN 'b' END))
				FROM (SELECT n, 1 + (hashint4(n) & 2147483647) % $3 AS k FROM generate_series($1::int, $2::int) n) s ORDER BY n`,
				written, written+perCommit-1, keys, types)
		}
	}
	part := total / 8
	write(part)
	for range 3 {
		write(part)
		testprogram.Pause(t, randomMoment(300*time.Millisecond))
		relay.Kill()
		relay = start()
	}
	relay.Stop() // a clean end: three kills in a row begin the safe mode, of one event at a time
	relay = start()
	write(part)
	server.Down(t)
	write(part)
	testprogram.Pause(t, 2*time.Second)
	server.Up(t)
	write(part)

	testprogram.Within(t, 5*time.Minute, "half of that to be delivered", func() bool {
		return db.Int(`SELECT count(*) FROM outbox_events WHERE delivered`) > int64(written/2)
	})

	// A stream that captures nothing takes nothing more: so what it has is read before it is deleted.
	elsewhere := stream
	elsewhere.Subjects = []string{"elsewhere"}
	server.Stream(t, elsewhere)
	write(part / 2)
	testprogram.Eventually(t, "the relay to say that no stream captures its subjects", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE error LIKE '%no stream captures subject thoughts.%'`) > 0
	})
	messages := server.Messages(t, stream.Name)
	if err := server.JetStream().DeleteStream(t.Context(), stream.Name); err != nil {
		t.Fatal(err)
	}
	first := len(messages)
	server.Stream(t, stream)
	write(total)

	poison := int64(total / 100)
	testprogram.Within(t, 5*time.Minute, "every row that fits to be delivered", func() bool {
		return db.Int(`SELECT count(*) FROM outbox_events WHERE NOT delivered`) == poison
	})
	if dead := db.Int(`SELECT count(*) FROM walpost.owed w JOIN outbox_events o ON o.seq::text = w.event_id
		WHERE w.state = 'dead' AND o.payload ? 'by' AND NOT o.delivered AND o.delivered_at IS NULL`); dead != poison {
		t.Errorf("%d rows are dead and not marked, want %d", dead, poison)
	}
	if others := debttest.Dead(db) - poison; others != 0 {
		t.Errorf("%d dead letters that fit", others)
	}
	relay.Stop()

	messages = append(messages, server.Messages(t, stream.Name)...)
	seen := inOrder(t, messages)
	if seen != written-int(poison) {
		t.Errorf("%d events have arrived, want %d", seen, written-int(poison))
	}
	t.Logf("%d events, %d of them in the first stream, %d came again, %d are dead", written, first, len(messages)-seen, poison)
}

// thoughtsDatabase is a database with the tables of the example, and what starts a relay from there to these servers.
func thoughtsDatabase(t *testing.T, servers ...string) (*testdb.DB, func() *testprogram.Process) {
	t.Helper()
	db := testdb.New(t)
	example := filepath.Join("..", "..", "deploy", "examples", "thoughts")
	schema, err := os.ReadFile(filepath.Join(example, "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(string(schema))
	fits, err := filepath.Abs(filepath.Join(example, "events.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	config := fmt.Sprintf(`
sources: [{name: thoughts, table: public.outbox_events, columns: {key: payload.thought_id}, schema: %q}]
subscribers:
  - {name: nats, servers: ["%s"], subject: "thoughts.{type}", stall_after: 5s, timeout: 3s, retry: {max: 1s}}
`, fits, strings.Join(servers, `", "`))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return db, func() *testprogram.Process {
		relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
		relay.AwaitStreaming()
		return relay
	}
}

// inOrder checks that of each subject and key the first occurrences are in the order of their numbers, and counts them.
func inOrder(t *testing.T, messages []*jetstream.RawStreamMsg) int {
	t.Helper()
	seen, last := map[int]bool{}, map[string]int{}
	for _, m := range messages {
		var payload struct {
			By   string `json:"by"`
			Text string `json:"text"`
		}
		var n int
		if err := json.Unmarshal(m.Data, &payload); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(payload.Text, &n); err != nil || payload.By != "" {
			t.Fatalf("%s has arrived: %v", m.Data, err)
		}
		if seen[n] {
			continue
		}
		seen[n] = true
		of := m.Subject + " " + m.Header.Get("walpost-key")
		if before, any := last[of]; any && n < before {
			t.Errorf("%s: %d comes after %d", of, n, before)
		}
		last[of] = n
	}
	return len(seen)
}

// A cluster of three loses the leader of the stream, again and again, while a stream with replicas takes atomic batches:
// nothing is missing, nothing is a dead letter, the order of each key holds.
func TestSoak_aNATSClusterLosesItsLeaderAndNothingElse(t *testing.T) {
	const keys = 50
	total := scaled(t, 20_000)
	cluster := natstest.StartCluster(t, 3)
	cluster[0].Stream(t, jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}, AllowAtomicPublish: true, Replicas: 3})
	db, start := thoughtsDatabase(t, cluster[0].Address(), cluster[1].Address(), cluster[2].Address())
	relay := start()
	leader := func() *natstest.Server {
		var found *natstest.Server
		testprogram.Eventually(t, "the stream to have a leader", func() bool {
			for _, s := range cluster {
				stream, err := s.JetStream().Stream(t.Context(), "thoughts")
				if err != nil || stream.CachedInfo().Cluster == nil {
					continue
				}
				for _, s := range cluster {
					if s.Name() == stream.CachedInfo().Cluster.Leader {
						found = s
					}
				}
			}
			return found != nil
		})
		return found
	}
	written := 0
	write := func(n int) {
		for end := min(written+n, total); written < end; written += 50 {
			db.Exec(`INSERT INTO outbox_events (event_type, payload)
				SELECT 'thought.written', jsonb_build_object('thought_id', 1 + n % $3, 'text', n::text, 'author', 'a') FROM generate_series($1::int, $2::int) n`,
				written, written+49, keys)
		}
	}
	for range 3 {
		write(total / 4)
		testprogram.Pause(t, randomMoment(300*time.Millisecond))
		killed := leader()
		killed.Down(t)
		write(total / 20)
		testprogram.Pause(t, time.Second)
		killed.Up(t)
	}
	write(total)
	testprogram.Within(t, 5*time.Minute, "every row to be delivered", func() bool {
		return db.Int(`SELECT count(*) FROM outbox_events WHERE NOT delivered`) == 0
	})
	if dead := debttest.Dead(db); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	relay.Stop()
	messages := leader().Messages(t, "thoughts")
	if seen := inOrder(t, messages); seen != written {
		t.Errorf("%d events have arrived, want %d", seen, written)
	}
	batches := 0
	for _, m := range messages {
		if m.Header.Get("Nats-Batch-Commit") != "" {
			batches++
		}
	}
	t.Logf("%d events, %d messages, %d batches", written, len(messages), batches)
}
