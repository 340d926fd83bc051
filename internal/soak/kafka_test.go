//go:build soak

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// S-370. Payments go through the table of another service into three real brokers, which are restarted in turn, and whose
// partitions change their leaders, while relays are killed and one is frozen next to a standby that takes over: nothing is
// missing, nothing is a dead letter, and of each key the first occurrences come in the order of the commits. With
// exactly_once each id is there once. A short run has one broker.
func TestSoak_paymentsReachKafkaThroughRestartsKillsAndAFreeze(t *testing.T) {
	number := 3
	if rounds(t, 100) < 100 {
		number = 1
	}
	cluster := kafkatest.StartCluster(t, number)
	t.Run("by the term", func(t *testing.T) { soakPayments(t, cluster, false) })
	t.Run("in transactions", func(t *testing.T) { soakPayments(t, cluster, true) })
}

// payments writes into the table of the example, one commit after the other, so that the order of the numbers is that of
// the commits. So many commits have one key, which is not the only one of its transaction.
type payments struct {
	t       *testing.T
	db      *testdb.DB
	topic   string
	file    string
	written int
}

const paymentKeys = 1000

func newPayments(t *testing.T, cluster *kafkatest.Cluster, options string) *payments {
	t.Helper()
	db := testdb.New(t)
	schema, err := os.ReadFile(filepath.Join("..", "..", "deploy", "examples", "payments", "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(string(schema))
	db.Exec(`INSERT INTO payments SELECT md5(k::text)::uuid, md5('org')::uuid, 100, 'created' FROM generate_series(0, $1 - 1) k`, paymentKeys)
	p := &payments{t: t, db: db, topic: "payments-" + db.Name, file: filepath.Join(t.TempDir(), "walpost.yaml")}
	brokers, err := json.Marshal(cluster.Addresses())
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`
sources: [{name: payments, table: public.payment_outbox, columns: {id: payload.event_id}}]
subscribers:
  - {name: kafka, brokers: %s, topic: "%s", partitioner: fnv1a%s}
`, brokers, p.topic, options)
	if err := os.WriteFile(p.file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *payments) start() *testprogram.Process {
	return testprogram.Start(p.t, []string{"WALPOST_DATABASE_URL=" + p.db.DSN}, "relay", "--config="+p.file, "--slot="+p.db.Name, "--ops-listen=127.0.0.1:0")
}

// write commits so many payments, some in each transaction.
func (p *payments) write(n int) {
	const perCommit = 25
	for end := p.written + n; p.written < end; {
		next := min(p.written+perCommit, end)
		p.db.Exec(`INSERT INTO payment_outbox (org_id, aggregate_id, topic, event_type, partition_key, payload)
			SELECT md5('org')::uuid, md5(k::text)::uuid, $1, 'payment.changed', 'key-' || k,
			       jsonb_build_object('event_id', 'evt-' || n, 'n', n, 'occurred_at', clock_timestamp())
			FROM (SELECT n, (hashint4(n) & 2147483647) % $4 AS k FROM generate_series($2::int, $3::int) n) s ORDER BY n`, p.topic, p.written, next-1, paymentKeys)
		p.written = next
	}
}

// awaitPublished waits until Kafka has all of them.
func (p *payments) awaitPublished() {
	p.t.Helper()
	testprogram.Within(p.t, 10*time.Minute, "every row to be published", func() bool {
		return p.db.Int(`SELECT count(*) FROM payment_outbox WHERE published_at IS NULL`) == 0
	})
	if dead := debttest.Dead(p.db); dead != 0 {
		p.t.Errorf("%d dead letters", dead)
	}
}

// check reads the topic: nothing is missing, and the first occurrences of a key are in order. It returns how many records
// came again.
func (p *payments) check(records []*kgo.Record) (repeated int) {
	p.t.Helper()
	seen, last := map[int]bool{}, map[string]int{}
	for _, r := range records {
		n := paymentOf(p.t, r).N
		if seen[n] {
			repeated++
			continue
		}
		seen[n] = true
		if before, any := last[string(r.Key)]; any && n < before {
			p.t.Errorf("key %s: %d comes after %d", r.Key, n, before)
		}
		last[string(r.Key)] = n
	}
	if len(seen) != p.written {
		p.t.Errorf("%d payments have arrived, want %d", len(seen), p.written)
	}
	return repeated
}

type payment struct {
	N          int
	OccurredAt time.Time `json:"occurred_at"`
}

func paymentOf(t *testing.T, r *kgo.Record) (of payment) {
	t.Helper()
	if err := json.Unmarshal(r.Value, &of); err != nil {
		t.Errorf("partition %d, offset %d: %v", r.Partition, r.Offset, err)
	}
	return of
}

func soakPayments(t *testing.T, cluster *kafkatest.Cluster, exactlyOnce bool) {
	p := newPayments(t, cluster, fmt.Sprintf(", stall_after: 5s, timeout: 3s, retry: {max: 1s}, exactly_once: %v", exactlyOnce))
	cluster.Brokers[0].Topic(t, p.topic, 6)
	part := scaled(t, 100_000) / 10
	relay := p.start()
	relay.AwaitStreaming()
	p.write(part)
	for range 3 {
		p.write(part)
		testprogram.Pause(t, randomMoment(300*time.Millisecond))
		relay.Kill()
		relay = p.start()
		relay.AwaitStreaming()
		if len(cluster.Brokers) > 1 {
			cluster.MoveLeaders(t, p.topic)
		}
	}
	cluster.RestartInTurn(t, p.topic, func() {
		p.write(part)
		testprogram.Pause(t, time.Second)
	})

	standby := p.start()
	standby.Await(`stand`)
	p.write(part / 2)
	frozen := relay
	if err := syscall.Kill(frozen.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	standby.AwaitStreaming()
	p.write(part)
	if err := syscall.Kill(frozen.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.write(max(0, scaled(t, 100_000)-p.written))
	p.awaitPublished()
	standby.Stop()
	frozen.Stop()

	repeated := p.check(cluster.Brokers[0].Records(t, p.topic))
	if exactlyOnce && repeated > 0 {
		t.Errorf("%d records came again", repeated)
	}
	t.Logf("%d payments, %d records came again, %d were owed at the end", p.written, repeated, debttest.Rows(p.db))
}

// One of six partitions has no leader for five minutes at 1,000 events a second. Nothing becomes a dead letter, the other
// partitions get their events as before, and the sick one gets its own in order when it is back.
func TestSoak_aPartitionWithoutALeaderHoldsUpItsOwnKeysAlone(t *testing.T) {
	number := int32(3)
	if rounds(t, 100) < 100 {
		number = 2
	}
	cluster := kafkatest.StartCluster(t, int(number))
	p := newPayments(t, cluster, "")
	healthy := make([][]int32, 5)
	for i := range healthy {
		healthy[i] = []int32{1}
		if number == 3 {
			healthy[i] = []int32{1 + int32(i%2), 2 - int32(i%2)}
		}
	}
	const sick = 5
	cluster.TopicOn(t, p.topic, append(healthy, []int32{number})...)
	relay := p.start()
	relay.AwaitStreaming()

	reader := followPayments(t, cluster, p.topic, len(healthy))
	load := func(d time.Duration) {
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for begun := time.Now(); time.Since(begun) < d; <-tick.C {
			p.write(25)
		}
	}
	scaledTime := func(full time.Duration) time.Duration { return full / 100 * time.Duration(rounds(t, 100)) }
	load(5 * time.Second) // until everything is connected
	reader.latencies()
	load(max(5*time.Second, scaledTime(time.Minute)))
	before := reader.latencies()
	cluster.Brokers[number-1].Down(t)
	load(max(15*time.Second, scaledTime(5*time.Minute)))
	meanwhile := reader.latencies()
	owed := debttest.Waiting(p.db)
	cluster.Brokers[number-1].Up(t)
	p.awaitPublished()
	relay.Stop()
	repeated := p.check(cluster.Brokers[0].Records(t, p.topic))
	t.Logf("commit to consumer, the other partitions before: %s", before)
	t.Logf("commit to consumer, the other partitions while partition %d has no leader: %s", sick, meanwhile)
	t.Logf("%d payments, %d records came again, %d were owed when the leader came back", p.written, repeated, owed)
}

// follower reads some partitions of a topic while a test runs, as a consumer does.
type follower struct {
	mu   sync.Mutex
	took []time.Duration // guarded by mu
}

func followPayments(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions int) *follower {
	t.Helper()
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addresses()...), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{}
	stop := until(func(ctx context.Context) {
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			now := time.Now()
			f.mu.Lock()
			fetches.EachRecord(func(r *kgo.Record) { f.took = append(f.took, now.Sub(paymentOf(t, r).OccurredAt)) })
			f.mu.Unlock()
		}
	})
	t.Cleanup(func() { stop(); client.Close() })
	return f
}

// latencies are those since the last call.
func (f *follower) latencies() latency {
	f.mu.Lock()
	defer f.mu.Unlock()
	took := f.took
	f.took = nil
	if len(took) == 0 {
		return latency{}
	}
	slices.Sort(took)
	return latency{count: float64(len(took)), p50: took[len(took)/2], p99: took[len(took)*99/100]}
}
