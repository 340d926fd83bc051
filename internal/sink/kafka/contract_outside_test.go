//go:build outside

package kafka_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/access"
	"github.com/backendstart/walpost/internal/sink/kafka"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
)

// topic is a topic of a broker, with a subscriber that sends there.
type topic struct {
	broker *kafkatest.Broker
	name   string
	change func(*kafka.Options)
}

var topics atomic.Int64

const maxMessage = 100_000

func newTopic(t *testing.T, b *kafkatest.Broker, change func(*kafka.Options)) *topic {
	o := &topic{broker: b, name: fmt.Sprintf("contract-%d", topics.Add(1)), change: change}
	b.Topic(t, o.name, 1, "max.message.bytes", fmt.Sprint(maxMessage))
	return o
}

func options(b *kafkatest.Broker, topic string) kafka.Options {
	c := kafka.NewConfig()
	c.Brokers, c.Topic = []string{b.Address()}, topic
	return kafka.Options{Config: c, Name: "payments", Slot: "walpost", Timeout: time.Second}
}

func (o *topic) Open(t *testing.T) subscriber.Subscriber {
	options := options(o.broker, o.name)
	if o.change != nil {
		o.change(&options)
	}
	sub, err := kafka.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func (o *topic) Received(t *testing.T) []sinktest.Received {
	var all []sinktest.Received
	for _, r := range o.broker.Records(t, o.name) {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		all = append(all, sinktest.Received{ID: headers["webhook-id"], Key: headers["walpost-key"], Body: r.Value})
	}
	return all
}

func (o *topic) Down(t *testing.T)         { o.broker.Down(t) }
func (o *topic) Up(t *testing.T)           { o.broker.Up(t) }
func (o *topic) PartlyAbsent()             {}
func (o *topic) Limit(*testing.T) int      { return maxMessage }
func (o *topic) Stall(t *testing.T) func() { return o.broker.Freeze(t) }

// locked is a topic behind a login whose password stands in a file.
type locked struct {
	*topic
	file string
}

func (l *locked) Lock(t *testing.T)   { l.write(t, "wr0ng-s3cr3t") }
func (l *locked) Unlock(t *testing.T) { l.write(t, kafkatest.Password) }
func (l *locked) write(t *testing.T, password string) {
	if err := os.WriteFile(l.file, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
}

// F-09, F-33, F-34, F-42, F-46, F-49, F-51, F-56, S-270, S-340: what is told of an event is what the brokers have told of its record, whatever fails
// meanwhile; its id, key and bytes are the same each time.
func TestOutside_Kafka(t *testing.T) {
	b := kafkatest.Start(t)
	testBroker(t, b)
	t.Run("keeps the contract in transactions", func(t *testing.T) {
		sinktest.Run(t, func(t *testing.T) sinktest.Destination {
			return newTopic(t, b, func(o *kafka.Options) { o.ExactlyOnce = true })
		})
	})
	t.Run("keeps the contract behind a login", func(t *testing.T) {
		sinktest.Run(t, func(t *testing.T) sinktest.Destination {
			l := &locked{file: filepath.Join(t.TempDir(), "password")}
			l.Unlock(t)
			l.topic = newTopic(t, b, func(o *kafka.Options) {
				o.Brokers = []string{b.Auth()}
				o.SASL = &access.SASL{Mechanism: access.Plain, User: kafkatest.User, Password: config.Secret(safefile.Live(l.file, ""))}
			})
			return l
		})
	})
}
