package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 6 // of the topic of a turn

// kafka compares sending events to a broker with a bare loop of the same client, which sends records of the same size
// with the same headers, and knows nothing of Postgres, of order or of who leads. Each turn has a topic of its own.
func kafka(ctx context.Context, l *lab) error {
	b := bar{what: fmt.Sprintf("Kafka, records of %d bytes", l.Payload), unit: "events/s", baseline: "bare franz-go loop", bar: 0.8, aim: 0.95}
	switch {
	case len(l.Brokers) == 0:
		l.notRun("name the brokers of a Kafka with --brokers", b)
		return nil
	case !slices.Contains(l.Kinds, "kafka"):
		l.notRun("this program has no subscribers of kind kafka", b)
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(l.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := l.backlog(ctx, "100", l.Events, l.Payload); err != nil {
		return err
	}
	turn := 0
	inTopic := func(ctx context.Context, run func(topic string) (sample, error)) (s sample, err error) {
		turn++
		topic := fmt.Sprintf("walpost-bench-%d-%d", time.Now().UnixNano(), turn)
		if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
			return s, fmt.Errorf("make topic %s: %w", topic, err)
		}
		defer func() {
			_, dropped := admin.DeleteTopic(context.WithoutCancel(ctx), topic)
			err = errors.Join(err, dropped)
		}()
		return run(topic)
	}
	samples, err := l.turns(ctx, b.what,
		contestant{"walpost", func(ctx context.Context) (sample, error) {
			return inTopic(ctx, func(topic string) (sample, error) {
				f := flow{subscribers: []string{fmt.Sprintf("{name: kafka, brokers: [%s], topic: %s}", quoted(l.Brokers), topic)}}
				return l.drain(ctx, f, l.Events, 1)
			})
		}},
		contestant{b.baseline, func(ctx context.Context) (sample, error) {
			return inTopic(ctx, func(topic string) (sample, error) { return l.produce(ctx, topic) })
		}})
	if err != nil {
		return err
	}
	l.compare(b, samples[0], samples[1], rateOf)
	return nil
}

func quoted(texts []string) string {
	var all []string
	for _, text := range texts {
		all = append(all, fmt.Sprintf("%q", text))
	}
	return strings.Join(all, ", ")
}

func (l *lab) produce(ctx context.Context, topic string) (sample, error) {
	producer, err := l.start(ctx, nil, "produce", "--brokers="+strings.Join(l.Brokers, ","), "--topic="+topic,
		fmt.Sprintf("--events=%d", l.Events), fmt.Sprintf("--payload=%d", l.Payload))
	if err != nil {
		return sample{}, err
	}
	defer producer.stop()
	all, err := producer.finishedAll(ctx, 1)
	if err != nil {
		return sample{}, err
	}
	return sample{
		rate:   float64(l.Events) / time.Duration(all[0].Took).Seconds(),
		cpu:    float64(all[0].CPU) / 1e3 / float64(l.Events),
		allocs: float64(all[0].Mallocs) / float64(l.Events),
	}, nil
}

// headers are those that the relay gives to a record of the bench, so that both send the same bytes.
var headers = [][2]string{
	{"walpost-type", "lesson.completed"}, {"walpost-source", "lessons"}, {"walpost-key", "123"},
	{"walpost-position", "00000001-00000000015acc50-00000000"}, {"walpost-aggregate", "lesson/123"},
	{"walpost-attempt", "1"}, {"walpost-term", "1780000000000"},
}

// Produce sends so many records as fast as the client takes them, and says on out how long it took until all replicas had
// the last.
func Produce(ctx context.Context, brokers []string, topic string, events, payload int, out io.Writer) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(10_000))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	value := []byte(strings.Repeat("x", payload))
	var mu sync.Mutex
	var failed error
	cpu, allocs, begun := ownCPU(), mallocs(), time.Now()
	for i := range events {
		record := &kgo.Record{Topic: topic, Key: fmt.Append(nil, i%1000), Value: value, Headers: make([]kgo.RecordHeader, 0, len(headers)+1)}
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: "webhook-id", Value: fmt.Appendf(nil, "bench-%d", i)})
		for _, h := range headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	took := time.Since(begun)
	mu.Lock()
	defer mu.Unlock()
	if failed != nil {
		return failed
	}
	return json.NewEncoder(out).Encode(finished{Subscriber: "produce", Took: int64(took), CPU: int64(ownCPU() - cpu), Mallocs: mallocs() - allocs})
}
