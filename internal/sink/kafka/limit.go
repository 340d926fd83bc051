package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// defaultLimit is how large a batch is where the brokers do not tell: below the default of max.message.bytes.
	defaultLimit = 1_000_012
	// largestLimit is what fits into a request of the client.
	largestLimit = 64 << 20
	// knownFor is how long what a topic says of itself is believed. It bounds how long events of a topic whose brokers are
	// away go into the client, where no one sees why they wait, and are not reported as away.
	knownFor = 30 * time.Second
	// describeFor is how long a topic may take to answer.
	describeFor = 5 * time.Second
)

// limits know how large a batch of each topic may be. The client asks for it once for each partition, so it has to be known
// before the first record of a topic is handed over.
type limits struct {
	mu    sync.Mutex
	known map[string]limit // by topic; guarded by mu
}

type limit struct {
	bytes int
	asked time.Time
}

// of is the limit as it is known, the default where it is not.
func (l *limits) of(topic string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.known[topic]; ok {
		return known.bytes
	}
	return defaultLimit
}

// forget lets a topic be asked again.
func (l *limits) forget(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, topic)
}

// expire has a topic asked again by the next who needs it. What is known of it stays for the others until then.
func (l *limits) expire(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.known[topic]; ok {
		l.known[topic] = limit{bytes: known.bytes}
	}
}

// askTopic makes sure that a topic is there and its limit known. The error is Away.
func (l *limits) askTopic(ctx context.Context, admin *kadm.Client, topic string) error {
	l.mu.Lock()
	known, ok := l.known[topic]
	l.mu.Unlock()
	if ok && time.Since(known.asked) < knownFor {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, describeFor)
	defer cancel()
	bytes := defaultLimit
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	var config kadm.ResourceConfig
	if err == nil {
		config, err = configs.On(topic, nil)
	}
	if err == nil {
		err = config.Err
	}
	if several := (*kadm.ShardErrors)(nil); errors.As(err, &several) && len(several.Errs) > 0 {
		err = several.Errs[0].Err // one topic was asked for, and so one broker
	}
	var refused *kadm.AuthError
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return subscriber.Away(unknownTopic(topic))
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.As(err, &refused):
		// To write needs no right to describe.
	case err != nil:
		return subscriber.Away(fmt.Errorf("ask the brokers for topic %s: %w", topic, err))
	}
	for _, c := range config.Configs {
		if n, err := strconv.Atoi(c.MaybeValue()); c.Key == "max.message.bytes" && err == nil {
			bytes = max(512, min(n, largestLimit)) // the client takes no less
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[topic] = limit{bytes: bytes, asked: time.Now()}
	return nil
}

// clientLimit is a limit as the client counts: with the length that stands before a batch in a request.
func clientLimit(bytes int) int32 { return int32(bytes + 4) }

func unknownTopic(topic string) error {
	return fmt.Errorf("topic %s does not exist: make it, walpost makes none", topic)
}
