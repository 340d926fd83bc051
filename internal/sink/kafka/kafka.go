// Package kafka sends events to Kafka. An event is delivered when all replicas in sync have its record: the brokers' own
// report for that record, and nothing else. Order within a key is that of its partition, which the client keeps through its
// own retries. It must never create a topic, and never send a record after Abort has returned. docs/destinations.md is the
// page for users.
//
//	kafka.go        the subscriber: Send, Abort, Probe in probe.go
//	session.go      a client with what it has in hand
//	transaction.go  exactly_once: one transaction after the other
//	readback.go     what was committed and may come again, found at the begin of a session
//	trail.go        from where that has to be read
//	identity.go     by what it is known
//	record.go       an event as a record; debezium.go as Debezium makes it
//	answer.go       what an answer means
package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/route"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Options say where to and how.
type Options struct {
	*Config
	// Name is the subscriber's identity, Slot that of the relay: both are in the transactional id.
	Name, Slot string
	// Timeout is how long a record, or a transaction, may wait for the brokers before it is given up.
	Timeout  time.Duration
	Envelope envelope.Writer
}

// maxTopics is how many topics data can make: the client keeps something of each.
const maxTopics = 1000

// Kafka is a subscriber.Pipeline.
type Kafka struct {
	Options
	topic   *route.Template
	headers []configuredHeader
	names   *route.Names
	limits  limits
	masking masking

	use     sync.RWMutex // held for reading by Send, so that Abort can wait for those under way
	mu      sync.Mutex
	now     *session       // nil until the next Send; guarded by mu
	left    []*session     // get nothing new and are closed with their last report; guarded by mu
	closing sync.WaitGroup // of those that were left
}

type configuredHeader struct {
	name     string
	template *route.Template
}

// New makes the subscriber. It connects to nothing: that the brokers are away is no reason not to start.
func New(o Options) (*Kafka, error) {
	var problem error
	o.Check(config.Subscriber{}, func(key string, err error) {
		if problem == nil {
			problem = fmt.Errorf("%s: %w", key, err)
		}
	})
	if problem != nil {
		return nil, problem
	}
	k := &Kafka{Options: o, names: route.NewNames(maxTopics), limits: limits{known: map[string]limit{}}}
	k.topic, _ = route.Compile(o.Topic, route.Kafka) // Check has looked at it
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		template, _ := o.header(name)
		k.headers = append(k.headers, configuredHeader{name, template})
	}
	client, err := o.newClient() // so that a mistake that the client alone sees ends the start
	if err != nil {
		return nil, err
	}
	client.Close()
	return k, nil
}

// Name implements subscriber.Subscriber.
func (k *Kafka) Name() string { return k.Options.Name }

// Wants implements subscriber.Subscriber: which events go where is a matter of configuration.
func (k *Kafka) Wants(string) bool { return true }

// Handle sends one event and waits for the report. When ctx ends before it, a record that is on its way may still arrive.
func (k *Kafka) Handle(ctx context.Context, d subscriber.Delivery) error {
	reported := make(chan error, 1)
	k.Send(ctx, []subscriber.Delivery{d}, func(_ int, err error) { reported <- err })
	select {
	case err := <-reported:
		return err
	case <-ctx.Done():
		return subscriber.Away(fmt.Errorf("the brokers have not answered: %w", context.Cause(ctx)))
	}
}

// Send implements subscriber.Pipeline. The client gives up records that are not on their way when ctx ends, or after the
// timeout: those of a partition without a leader must not take all the room that is for unreported ones. One that is on its way
// ends with the brokers' answer alone.
func (k *Kafka) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	k.use.RLock()
	defer k.use.RUnlock()
	c := &call{kafka: k, ctx: ctx, done: done, begun: time.Now()}
	s, err := k.session()
	if err != nil {
		err = subscriber.Away(k.masked(err))
		for i := range deliveries {
			done(i, err)
		}
		return
	}
	defer s.release()
	records := c.prepare(s, deliveries)
	if k.ExactlyOnce {
		s.transact(c, records)
		return
	}
	s.expectReleases(len(records))
	c.unreported.Store(int64(len(records)))
	c.patient, c.stopWaiting = context.WithTimeoutCause(ctx, k.Timeout, errNotTaken)
	if len(records) == 0 {
		c.stopWaiting()
	}
	for _, r := range records {
		s.produce(r)
	}
}

// errNotTaken ends the wait for brokers that do not take records.
var errNotTaken = errors.New("the brokers have not taken it within the timeout")

// session is the one in use, or a new one. It stays open until it is released.
func (k *Kafka) session() (*session, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil {
		s, err := newSession(k)
		if err != nil {
			return nil, err
		}
		k.now = s
	}
	k.now.held++
	return k.now, nil
}

// sessions are all that may have something on its way.
func (k *Kafka) sessions() []*session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sessionsLocked()
}

func (k *Kafka) sessionsLocked() []*session {
	all := slices.Clone(k.left)
	if k.now != nil {
		all = append(all, k.now)
	}
	return all
}

// endSessions ends the use of all sessions: the next Send begins another.
func (k *Kafka) endSessions() []*session {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.sessionsLocked()
	k.now, k.left = nil, nil
	return all
}

// Abort implements subscriber.Pipeline: it waits for the brokers' answer to what is on its way, and gives up the rest. If
// ctx ends first, the connections are closed. Then a broker that was frozen can still find in its socket what was sent: the
// term in its headers tells, and with exactly_once the brokers refuse it, once another relay sends.
func (k *Kafka) Abort(ctx context.Context) error {
	for _, s := range k.sessions() {
		s.stop()
	}
	k.use.Lock() // no Send is under way any more
	defer k.use.Unlock()
	var errs []error
	for _, s := range k.endSessions() {
		s.stop()
		errs = append(errs, s.abort(ctx))
		s.close()
	}
	return errors.Join(errs...)
}

// Close closes the connections. No call may be under way.
func (k *Kafka) Close() error {
	for _, s := range k.endSessions() {
		s.stop()
		s.close()
	}
	k.closing.Wait()
	return nil
}

// call is one Send.
type call struct {
	kafka *Kafka
	ctx   context.Context // of the leadership; a call ends with it
	done  func(int, error)
	begun time.Time

	// patient ends the wait of the records that are not on their way; stopWaiting when all are reported.
	patient     context.Context
	stopWaiting context.CancelFunc
	unreported  atomic.Int64 // of those that were handed to the client

	mu     sync.Mutex
	failed map[string]bool // keys of which an event has failed; guarded by mu
}

// sending is a delivery on its way.
type sending struct {
	*call
	session *session
	index   int
	key     string
	record  record

	delivery *subscriber.Delivery
}

// report ends a delivery.
func (c *call) report(index int, key string, err error) {
	if err != nil {
		c.mu.Lock()
		if c.failed == nil {
			c.failed = map[string]bool{}
		}
		c.failed[key] = true
		c.mu.Unlock()
	}
	c.done(index, err)
}

// endRecord reports a delivery that was handed to the client.
func (x *sending) endRecord(err error) {
	if errors.Is(err, kerr.UnknownTopicID) {
		x.session.leave(x.record.Topic)
	}
	x.report(x.index, x.key, err)
	if x.unreported.Add(-1) == 0 {
		x.stopWaiting()
	}
	x.session.release()
}

// hasFailed tells whether a later event of the key would overtake one that has failed.
func (c *call) hasFailed(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[key]
}

// prepare makes the records. What cannot be sent is reported: the client would refuse an event that is too large, and go on
// with the next ones of its key.
func (c *call) prepare(s *session, deliveries []subscriber.Delivery) []*sending {
	k := c.kafka
	var all []*sending
	topics, askedAgain := map[string]error{}, map[string]bool{}
	for i := range deliveries {
		d := deliveries[i]
		if c.ctx.Err() != nil {
			c.report(i, d.Key, context.Cause(c.ctx))
			continue
		}
		if c.hasFailed(d.Key) {
			c.report(i, d.Key, subscriber.ErrHeld)
			continue
		}
		r, err := k.recordOf(d)
		if err == nil {
			known, asked := topics[r.Topic]
			if !asked {
				known = c.ready(s, r.Topic)
				topics[r.Topic] = known
			}
			err = known
		}
		if err == nil {
			size, limit := sizeOf(r), k.limits.of(r.Topic)
			if size > limit && !askedAgain[r.Topic] { // a person may have raised it since it was asked for
				askedAgain[r.Topic] = true
				k.limits.expire(r.Topic)
				err = c.ready(s, r.Topic)
				limit = k.limits.of(r.Topic)
			}
			if err == nil && size > limit {
				err = subscriber.Permanent(fmt.Errorf("the record has %d bytes before compression, topic %s takes %d (max.message.bytes)", size, r.Topic, limit))
			}
		}
		if err != nil {
			c.report(i, d.Key, err)
			continue
		}
		all = append(all, &sending{call: c, session: s, index: i, key: d.Key, record: r, delivery: &deliveries[i]})
	}
	return all
}

// ready tells whether a topic takes records, as far as is known.
func (c *call) ready(s *session, topic string) error {
	ctx, cancel := s.with(c.ctx)
	defer cancel()
	err := c.kafka.limits.askTopic(ctx, s.admin, topic)
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if err != nil {
		return c.kafka.masked(err)
	}
	// One that the brokers do not have takes no place: who writes events could take them all.
	if err := c.kafka.names.Admit(topic); err != nil {
		return subscriber.Away(fmt.Errorf("topic: %w", err))
	}
	return nil
}
