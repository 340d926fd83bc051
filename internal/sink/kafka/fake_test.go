package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// fake is a fake of Kafka, for faults that a real broker shows seldom. The contract is checked with a real one.
func fake(t *testing.T, settings map[string]string) (*kfake.Cluster, *Kafka) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	if err := cluster.CreateTopic("t", 1, settings); err != nil {
		t.Fatal(err)
	}
	c := NewConfig()
	c.Brokers, c.Topic = cluster.ListenAddrs(), "t"
	k, err := New(Options{Config: c, Name: "payments", Slot: "s", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return cluster, k
}

func delivery(n int, key, payload string) subscriber.Delivery {
	return subscriber.Delivery{Attempt: 1, Event: &event.Event{Source: "s", ID: fmt.Sprint(n), Type: "t", Key: key, Payload: []byte(payload)}}
}

// outcome sends and waits for all reports.
func outcome(t *testing.T, ctx context.Context, k *Kafka, deliveries ...subscriber.Delivery) []error {
	t.Helper()
	errs := make([]error, len(deliveries))
	var reports sync.WaitGroup
	reports.Add(len(deliveries))
	k.Send(ctx, deliveries, func(i int, err error) { errs[i] = err; reports.Done() })
	reports.Wait()
	return errs
}

// stored are the values in the topic.
func stored(t *testing.T, cluster *kfake.Cluster) []string {
	t.Helper()
	end := cluster.PartitionInfo("t", 0).HighWatermark
	if end == 0 {
		return nil
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var values []string
	for int64(len(values)) < end {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// holding matches a produce request with a batch in which this text stands.
func holding(text string) func(kmsg.Request) bool {
	return func(request kmsg.Request) bool {
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				if bytes.Contains(partition.Records, []byte(text)) {
					return true
				}
			}
		}
		return false
	}
}

// F-09. A broker stores a record and answers that it took too long, and the lead is lost then: the report is not
// that the record has failed. Up to franz-go 1.20.6 that could end with a record that is stored twice, or with one that is
// reported as stored and is not (twmb/franz-go#1217).
func TestKafka_doesNotReportAStoredRecordAsFailedWhenTheLeadIsLost(t *testing.T) {
	cluster, k := fake(t, nil)
	lead, lose := context.WithCancelCause(t.Context())
	timedOut := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 3})
	reported := make(chan error, 2)
	k.Send(lead, []subscriber.Delivery{delivery(1, "a", "one"), delivery(2, "a", "two")}, func(_ int, err error) { reported <- err })
	if err := timedOut.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	lose(errors.New("the lead is lost"))
	if err := k.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for range 2 {
		if err := <-reported; err != nil {
			failed++
		}
	}
	values := stored(t, cluster)
	if len(values)+failed != 2 || slices.Compare(values, []string{"one", "two"}[:len(values)]) != 0 {
		t.Errorf("stored %q, %d of two reported as failed", values, failed)
	}
}

// F-51. The client tries again by itself; what it keeps in flight must not overtake.
func TestKafka_keepsTheOrderThroughRetriesOfTheClient(t *testing.T) {
	cluster, k := fake(t, nil)
	n := 0
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: -1, When: func(kmsg.Request) bool {
		n++
		return n%3 == 1 && n < 40
	}})
	var want []string
	var reports sync.WaitGroup
	for call := range 50 {
		var batch []subscriber.Delivery
		for i := range 10 {
			text := fmt.Sprint(call*10 + i)
			want = append(want, text)
			batch = append(batch, delivery(call*10+i, "key", text))
		}
		reports.Add(len(batch))
		k.Send(t.Context(), batch, func(i int, err error) {
			if err != nil {
				t.Errorf("call %d, event %d: %v", call, i, err)
			}
			reports.Done()
		})
	}
	reports.Wait()
	if got := stored(t, cluster); !slices.Equal(got, want) {
		t.Errorf("stored %d in the order %.200v…", len(got), got)
	}
}

// F-51, S-272. A partition has no leader: its events come back as Away and wait, in no room that others need, and in their order.
func TestKafka_givesBackTheEventsOfAPartitionWithoutALeader(t *testing.T) {
	for name, fault := range map[string]kfake.Fault{
		"by the answer":   {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition},
		"by the metadata": {Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t", Err: kerr.LeaderNotAvailable},
		"too few in sync": {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, k := fake(t, nil)
			k.Timeout = 300 * time.Millisecond
			fault.Count = -1
			sick := cluster.Fault(fault)
			for range 2 {
				for i, err := range outcome(t, t.Context(), k, delivery(1, "a", "1"), delivery(2, "a", "2"), delivery(3, "b", "3")) {
					if !subscriber.IsAway(err) {
						t.Errorf("event %d: got %v, want Away", i, err)
					}
				}
			}
			sick.Remove()
			k.Timeout = 10 * time.Second
			for i, err := range outcome(t, t.Context(), k, delivery(1, "a", "1"), delivery(2, "a", "2"), delivery(3, "b", "3")) {
				if err != nil {
					t.Errorf("event %d, when there is a leader: %v", i, err)
				}
			}
			if got := stored(t, cluster); !slices.Equal(got, []string{"1", "2", "3"}) {
				t.Errorf("stored %q", got)
			}
		})
	}
}

// F-33. The brokers refuse a batch whole, for one of its records.
func TestKafka_findsTheOneRecordForWhichABatchIsRefused(t *testing.T) {
	for _, fault := range []*kerr.Error{kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.MessageTooLarge} {
		t.Run(fault.Message, func(t *testing.T) {
			cluster, k := fake(t, nil)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: fault, Count: -1, When: holding("BAD")})
			got := outcome(t, t.Context(), k, delivery(1, "a", "one"), delivery(2, "b", "BAD"), delivery(3, "b", "behind"), delivery(4, "c", "four"))
			if got[0] != nil || got[3] != nil || !subscriber.IsPermanent(got[1]) || got[2] != nil && !errors.Is(got[2], subscriber.ErrHeld) {
				t.Errorf("got %v", got)
			}
			values := stored(t, cluster)
			if slices.Contains(values, "BAD") || slices.Contains(values, "behind") != (got[2] == nil) || !slices.Contains(values, "one") || !slices.Contains(values, "four") {
				t.Errorf("stored %q", values)
			}
		})
	}
}

func TestKafka_callsWhatIsNotOfTheRecordAway(t *testing.T) {
	for _, fault := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.PolicyViolation, kerr.InvalidRequiredAcks, kerr.UnsupportedForMessageFormat} {
		cluster, k := fake(t, nil)
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: fault})
		if got := outcome(t, t.Context(), k, delivery(1, "a", "one"))[0]; !subscriber.IsAway(got) || !strings.Contains(got.Error(), fault.Message) {
			t.Errorf("%s: got %v, want Away with the broker's words", fault.Message, got)
		}
		if got := outcome(t, t.Context(), k, delivery(1, "a", "one"))[0]; got != nil {
			t.Errorf("%s: then %v", fault.Message, got)
		}
	}
}

func TestKafka_knowsTheLimitOfATopicBeforeItSends(t *testing.T) {
	_, k := fake(t, map[string]string{"max.message.bytes": "2000"})
	got := outcome(t, t.Context(), k, delivery(1, "a", strings.Repeat("x", 1000)), delivery(2, "a", strings.Repeat("x", 2000)), delivery(3, "a", "behind"), delivery(4, "b", "four"))
	if got[0] != nil || got[3] != nil || !errors.Is(got[2], subscriber.ErrHeld) {
		t.Errorf("got %v", got)
	}
	if err := got[1]; !subscriber.IsPermanent(err) || !strings.Contains(err.Error(), "2000") || !strings.Contains(err.Error(), "has 22") {
		t.Errorf("got %v, want both sizes", err)
	}
}

// S-380, F-33: a person raises the limit of a topic and sends a dead letter again, at once and without a restart.
func TestKafka_takesWhatWasTooLargeWhenTheLimitIsRaised(t *testing.T) {
	for _, exactlyOnce := range []bool{false, true} {
		cluster, k := fake(t, map[string]string{"max.message.bytes": "2000"})
		k.ExactlyOnce = exactlyOnce
		large := delivery(1, "a", strings.Repeat("x", 5000))
		if got := outcome(t, t.Context(), k, large, delivery(2, "b", "small"))[0]; !subscriber.IsPermanent(got) {
			t.Fatalf("got %v, want a dead letter", got)
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		raised := "100000"
		if _, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &raised}}, "t"); err != nil {
			t.Fatal(err)
		}
		got := outcome(t, t.Context(), k, large)[0]
		if subscriber.IsAway(got) { // a client that knows the former limit is replaced
			got = outcome(t, t.Context(), k, large)[0]
		}
		if got != nil {
			t.Errorf("exactly once %v: got %v after the limit was raised", exactlyOnce, got)
		}
	}
}

// F-42
func TestKafka_anEventWhoseTopicIsNoneIsADeadLetter(t *testing.T) {
	c := NewConfig()
	c.Brokers = []string{"127.0.0.1:1"}
	k, err := New(Options{Config: c, Name: "payments"})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{"": "{topic}: the event has no topic", "a b": `"a b" is no topic`, "é": "is no topic"} {
		d := delivery(1, "a", "x")
		d.Topic = topic
		if got := outcome(t, t.Context(), k, d)[0]; !subscriber.IsPermanent(got) || !strings.Contains(got.Error(), want) {
			t.Errorf("topic %q: got %v, want %s", topic, got, want)
		}
	}
}

func TestSizeOf_isWhatTheClientCounts(t *testing.T) {
	for _, size := range []int{0, 1, 63, 64, 8191, 8192, 100_000} {
		_, k := fake(t, nil)
		d := delivery(1, strings.Repeat("k", size%300), strings.Repeat("x", size))
		r, err := k.recordOf(d)
		if err != nil {
			t.Fatal(err)
		}
		for limit, want := range map[int]error{sizeOf(r): nil, sizeOf(r) - 1: kerr.MessageTooLarge} {
			if limit < 512 {
				continue
			}
			client, err := k.newClient(kgo.ProducerBatchMaxBytes(clientLimit(limit)))
			if err != nil {
				t.Fatal(err)
			}
			again := *r
			if err := client.ProduceSync(t.Context(), &again).FirstErr(); !errors.Is(err, want) {
				t.Errorf("a record of %d bytes with a limit of %d: %v", sizeOf(r), limit, err)
			}
			client.Close()
		}
	}
}

// S-271. A stop waits for Abort, which has less than a second then.
func TestKafka_endsAnAbortInTimeWhateverTheBrokersDo(t *testing.T) {
	for name, fault := range map[string]*kfake.Fault{
		"a commit without an answer":                                  {Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.CoordinatorLoadInProgress, Count: -1},
		"a record that is refused, and a transaction that cannot end": {Keys: []kmsg.Key{kmsg.EndTxn, kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1},
		"no coordinator": {Keys: []kmsg.Key{kmsg.FindCoordinator, kmsg.InitProducerID}, Err: kerr.CoordinatorNotAvailable, Count: -1},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, k := fake(t, nil)
			k.ExactlyOnce, k.Timeout = true, time.Minute
			met := cluster.Fault(*fault)
			lead, lose := context.WithCancelCause(t.Context())
			reported := make(chan error, 2)
			go k.Send(lead, []subscriber.Delivery{delivery(1, "a", "one"), delivery(2, "b", "two")}, func(_ int, err error) { reported <- err })
			if err := met.Wait(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			lose(errors.New("the relay stops"))
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begun := time.Now()
			_ = k.Abort(ctx)
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			for range 2 {
				if err := <-reported; err == nil || subscriber.IsPermanent(err) {
					t.Errorf("got %v, want an error that is not permanent", err)
				}
			}
		})
	}
}

// S-345. Who writes events writes their topics: names that the brokers do not have must not use up the bound, or a thousand
// rows keep every later topic from its events until the relay is restarted.
func TestKafka_countsNoTopicThatTheBrokersDoNotHave(t *testing.T) {
	cluster, k := fake(t, nil)
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	c := NewConfig()
	c.Brokers = cluster.ListenAddrs()
	k, err := New(Options{Config: c, Name: "payments", Slot: "s", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	made := make([]subscriber.Delivery, maxTopics)
	for i := range made {
		made[i] = delivery(i, fmt.Sprint(i), "x")
		made[i].Topic = fmt.Sprintf("made-up-%d", i)
	}
	for i, err := range outcome(t, t.Context(), k, made...) {
		if !subscriber.IsAway(err) || !strings.Contains(err.Error(), "does not exist") {
			t.Fatalf("event %d: got %v, want Away for want of its topic", i, err)
		}
	}
	there := delivery(maxTopics, "a", "one")
	there.Topic = "t"
	if err := outcome(t, t.Context(), k, there)[0]; err != nil {
		t.Errorf("a topic that the brokers have: %v", err)
	}
}

// S-347. What stands at the address of a broker may be anything: an answer without end is not read into memory.
func TestKafka_readsNoAnswerWithoutEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const says = 64 << 20
	written := make(chan int, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Read(make([]byte, 1024)); err != nil {
					return
				}
				n := 0
				chunk := binary.BigEndian.AppendUint32(nil, says)
				for n < says {
					some, err := conn.Write(chunk)
					if n += some; err != nil {
						break
					}
					chunk = make([]byte, 1<<16)
				}
				written <- n
			}()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	c := NewConfig()
	c.Brokers, c.Topic = []string{listener.Addr().String()}, "t"
	k, err := New(Options{Config: c, Name: "payments", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := k.Probe(ctx); err == nil {
		t.Error("an answer of zeroes is believed")
	}
	if n := <-written; n >= says {
		t.Errorf("all of the %d bytes were read", n)
	}
}
