//go:build soak

package soak

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Payments go through the table of another service into a real broker, which is restarted, while relays are killed and one
// is frozen beside a standby that takes over: nothing is missing, nothing is a dead letter, and of each key the first
// occurrences come in the order of the commits.
func TestSoak_paymentsReachKafkaThroughRestartsKillsAndAFreeze(t *testing.T) {
	broker := kafkatest.Start(t)
	for name, options := range map[string]string{"by the term": "", "in transactions": "exactly_once: true"} {
		if options == "" && rounds(t, 100) < 100 {
			continue // a short run has the one that can do more wrong
		}
		t.Run(name, func(t *testing.T) { soakPayments(t, broker, options) })
	}
}

func soakPayments(t *testing.T, broker *kafkatest.Broker, options string) {
	const keys, perCommit = 1000, 25
	total := scaled(t, 100_000)
	db := testdb.New(t)
	schema, err := os.ReadFile(filepath.Join("..", "..", "deploy", "examples", "payments", "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(string(schema))
	db.Exec(`INSERT INTO payments SELECT md5(k::text)::uuid, md5('org')::uuid, 100, 'created' FROM generate_series(0, $1 - 1) k`, keys)
	topic := "payments-" + db.Name
	broker.Topic(t, topic, 6)
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	config := fmt.Sprintf(`
sources: [{name: payments, table: public.payment_outbox, columns: {id: payload.event_id}}]
subscribers:
  - {name: kafka, brokers: ["%s"], topic: "%s", partitioner: fnv1a, stall_after: 5s, timeout: 3s, retry: {max: 1s}, %s}
`, broker.Address(), topic, options)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *testprogram.Process {
		return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
	}
	relay := start()
	relay.AwaitStreaming()

	written := 0
	write := func(n int) { // one writer, so that the order of the numbers is that of the commits
		for end := min(written+n, total); written < end; written += perCommit {
			db.Exec(`INSERT INTO payment_outbox (org_id, aggregate_id, topic, event_type, partition_key, payload)
				SELECT md5('org')::uuid, md5(k::text)::uuid, $1, 'payment.changed', 'key-' || k,
				       jsonb_build_object('event_id', 'evt-' || n, 'n', n, 'occurred_at', clock_timestamp())
				FROM (SELECT n, (hashint4(n) & 2147483647) % $4 AS k FROM generate_series($2::int, $3::int) n) s ORDER BY n`, topic, written, written+perCommit-1, keys)
		}
	}
	part := total / 8
	write(part)
	for range 3 {
		write(part)
		testprogram.Pause(t, randomMoment(300*time.Millisecond))
		relay.Kill()
		relay = start()
		relay.AwaitStreaming()
	}
	write(part)
	broker.Down(t)
	write(part)
	testprogram.Pause(t, 2*time.Second)
	broker.Up(t)
	write(part)

	standby := start()
	standby.Await(`stand`)
	frozen := relay
	if err := syscall.Kill(frozen.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	standby.AwaitStreaming()
	write(total)
	if err := syscall.Kill(frozen.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testprogram.Within(t, 5*time.Minute, "every row to be published", func() bool {
		return db.Int(`SELECT count(*) FROM payment_outbox WHERE published_at IS NULL`) == 0
	})
	if dead := db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	standby.Stop()
	frozen.Stop()

	seen, last, repeated := map[int]bool{}, map[string]int{}, 0
	for _, r := range broker.Records(t, topic) {
		n := numberOf(t, r)
		if seen[n] {
			repeated++
			continue
		}
		seen[n] = true
		if before, any := last[string(r.Key)]; any && n < before {
			t.Errorf("key %s: %d comes after %d", r.Key, n, before)
		}
		last[string(r.Key)] = n
	}
	if len(seen) != written {
		t.Errorf("%d payments have arrived, want %d", len(seen), written)
	}
	t.Logf("%d payments, %d records came again, %d were owed", written, repeated, db.Int(`SELECT count(*) FROM walpost.owed`))
}

func numberOf(t *testing.T, r *kgo.Record) int {
	t.Helper()
	var payload struct{ N int }
	if err := json.Unmarshal(r.Value, &payload); err != nil {
		t.Fatal(err)
	}
	return payload.N
}
