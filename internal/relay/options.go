package relay

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/tracing"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configures a relay.
type Options struct {
	// Pool is for the relay's own statements; subscribers have another one, so that they cannot starve it.
	Pool *postgres.Pool
	// ReplicationURL is a direct connection string: a pooler cannot carry replication.
	ReplicationURL string
	// ReplicationOption is its name in the configuration, for errors; "" is replication_url.
	ReplicationOption string
	Slot, Publication string
	Sources           []*outbox.Source
	Subscriptions     []Subscription
	Window            ack.Window
	// MaxEvent is the size in bytes above which an event is not kept but recorded as dead.
	MaxEvent int
	// WALBudget is how many bytes of WAL debt may hold: 0 none, Unlimited for always, Auto for what the
	// server's max_slot_wal_keep_size allows.
	WALBudget int64
	// StopOnLostSlot refuses to repair: a person decides how to go on.
	StopOnLostSlot bool
	// Settled is how long a process must live for its end to say nothing about the events that it handled; 0 is
	// 5 minutes.
	Settled time.Duration
	// Drain is how long a stop waits for what is in hand.
	Drain    time.Duration
	Registry prometheus.Registerer
	// Tracer makes spans of what the relay does; nil makes none.
	Tracer *tracing.Tracer
	// Lease is how one of several relays leads; nil is for a relay that is the only one of its slot.
	Lease *lease.Lease
	Log   *slog.Logger
}

// Sessions is how many sessions of Options.Pool the relay holds at a time: a repair reads rows in one transaction and
// records them in another.
const Sessions = 2

// Values of Options.WALBudget other than a number of bytes.
const (
	Unlimited = math.MaxInt64
	Auto      = -1
)

// Subscription is a subscriber and what it gets.
type Subscription struct {
	Subscriber subscriber.Subscriber
	Lane       lane.Options
	// Filter says, in addition to the subscriber's own Wants, which events go to it.
	Filter event.Filter
	// FromBeginning lets a subscriber that is new to the slot begin with all rows that the tables have.
	FromBeginning bool
	// RenamedFrom is the name that the subscriber had before; what is recorded under it is carried over.
	RenamedFrom string
}

// wants reports whether events of a source and type go to the subscriber. Every subscriber wants an event without a type:
// no filter can judge it, so it becomes a dead letter of each of them.
func (s Subscription) wants(source, eventType string) bool {
	return s.Filter.Takes(source, eventType) && s.understands(eventType)
}

func (s Subscription) understands(eventType string) bool {
	return eventType == "" || s.Subscriber.Wants(eventType)
}

// filter returns what the subscriber wants, in the form in which it is recorded.
func (s Subscription) filter() event.Filter {
	filter := s.Filter
	if typed, ok := s.Subscriber.(subscriber.TypedSubscriber); ok {
		filter.Types = typed.Types()
	}
	return filter
}

// names lists the subscribers in the order of their numbers.
func (o *Options) names() []string {
	names := make([]string, len(o.Subscriptions))
	for i, sub := range o.Subscriptions {
		names[i] = sub.Subscriber.Name()
	}
	return names
}

// messagePrefixes are those of the sources that are no tables.
func (o *Options) messagePrefixes() (prefixes []string) {
	for _, source := range o.Sources {
		if source.Messages != "" {
			prefixes = append(prefixes, source.Messages)
		}
	}
	return prefixes
}

// configuredSubscriber is a subscriber as the configuration has it.
type configuredSubscriber struct {
	name          string
	filter        event.Filter
	fromBeginning bool
	subscription  Subscription
}

func (o *Options) configured() []configuredSubscriber {
	subs := make([]configuredSubscriber, len(o.Subscriptions))
	for i, sub := range o.Subscriptions {
		subs[i] = configuredSubscriber{sub.Subscriber.Name(), sub.filter(), sub.FromBeginning, sub}
	}
	return subs
}

func (o *Options) messageSources() []*outbox.Source {
	var messages []*outbox.Source
	for _, source := range o.Sources {
		if source.Messages != "" {
			messages = append(messages, source)
		}
	}
	return messages
}

// holder names this process.
func (o *Options) holder() string {
	if o.Lease != nil {
		return o.Lease.Holder()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// settled is how long a process must have run before its end says nothing about the events that it handled.
const settled = 5 * time.Minute

// settledAfter is Options.Settled or its default.
func (o *Options) settledAfter() time.Duration {
	if o.Settled > 0 {
		return o.Settled
	}
	return settled
}
