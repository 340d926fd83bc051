package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/subscriber"
)

type record = *kgo.Record

// session is a client with what it has in hand, from the first Send to an Abort.
type session struct {
	kafka  *Kafka
	client *kgo.Client
	admin  *kadm.Client
	ended  context.Context // ends with the session; what waits for the brokers waits no longer
	stop   context.CancelFunc

	held int // by Sends under way and by records that are not reported; guarded by kafka.mu

	limits sync.Map // of topics, the lowest that the client was told: it asks once for each partition

	turn   chan struct{}         // holds one token while no transaction is under way
	fenced bool                  // another has our transactional id; owned by who holds the token
	begun  bool                  // begin has ended well; owned by who holds the token
	seen   map[identity]struct{} // committed before this session and perhaps coming again; owned by who holds the token

	trail    *trail
	noting   sync.Mutex  // held while places are noted, so that a later one is not overwritten
	resolved atomic.Bool // nothing in seen can come again

	mu      sync.Mutex
	single  *kgo.Client // of records that go alone, nil until the first; guarded by mu
	alone   []*sending  // wait for single; guarded by mu
	working bool        // a goroutine is at alone; guarded by mu
	workers sync.WaitGroup
}

func newSession(k *Kafka) (*session, error) {
	s := &session{kafka: k, turn: make(chan struct{}, 1), seen: map[identity]struct{}{}, trail: newTrail()}
	s.turn <- struct{}{}
	s.ended, s.stop = context.WithCancel(context.Background())
	more := []kgo.Opt{kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
		bytes := k.limits.of(topic)
		if told, known := s.limits.LoadOrStore(topic, bytes); known && bytes < told.(int) {
			s.limits.Store(topic, bytes)
		}
		return clientLimit(bytes)
	})}
	if k.ExactlyOnce {
		// A transaction begins without a context of its own, and waits as long as the brokers let it: it ends with the session.
		// What is cut off then was not committed.
		more = append(more, kgo.TransactionalID(k.transactionalID()), kgo.WithContext(s.ended))
	}
	var err error
	if s.client, err = k.newClient(more...); err != nil {
		s.stop()
		return nil, err
	}
	s.admin = kadm.NewClient(s.client)
	return s, nil
}

// expectReleases keeps the session open for n more releases.
func (s *session) expectReleases(n int) {
	s.kafka.mu.Lock()
	defer s.kafka.mu.Unlock()
	s.held += n
}

// release lets a session that was left be closed.
func (s *session) release() {
	s.kafka.mu.Lock()
	defer s.kafka.mu.Unlock()
	s.held--
	s.closeIfLeftLocked()
}

// leave lets the next Send begin another session, because this client does not send to the topic any more: it was deleted and
// made again, and a client knows a topic by its id for as long as it lives. To have it forget the topic would count the
// records from 0 again under the same producer id, and brokers take what they have counted before for a repetition.
func (s *session) leave(topic string) {
	k := s.kafka
	k.limits.forget(topic)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now != s {
		return
	}
	k.now, k.left = nil, append(k.left, s)
	s.closeIfLeftLocked()
}

func (s *session) closeIfLeftLocked() {
	k := s.kafka
	if i := slices.Index(k.left, s); i >= 0 && s.held == 0 {
		k.left = slices.Delete(k.left, i, i+1)
		k.closing.Go(func() { s.stop(); s.close() })
	}
}

// hasOutgrown tells that the client refuses a record that the topic takes by now.
func (s *session) hasOutgrown(x *sending) bool {
	told, asked := s.limits.Load(x.record.Topic)
	return asked && sizeOf(x.record) > told.(int)
}

// with is a context that ends with ctx and with the session.
func (s *session) with(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.ended, cancel)
	return ctx, func() { unhook(); cancel() }
}

// produce hands a record over. The report comes on the one goroutine that has all of them: it notes, signals and returns.
func (s *session) produce(x *sending) {
	s.client.Produce(x.patient, x.record, func(r *kgo.Record, err error) {
		if isFault(err) {
			s.sendAlone(x)
			return
		}
		x.endRecord(s.kafka.judge(x.ctx, r, err))
	})
}

// sendAlone sends a record again that was in a batch which the brokers refused whole: alone it shows which record of the
// batch is at fault. One at a time, on a client that no other record goes through.
func (s *session) sendAlone(x *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = append(s.alone, x)
	if !s.working {
		s.working = true
		s.workers.Add(1)
		go s.workAlone()
	}
}

func (s *session) workAlone() {
	defer s.workers.Done()
	for {
		s.mu.Lock()
		if len(s.alone) == 0 {
			s.alone, s.working = nil, false
			s.mu.Unlock()
			return
		}
		x := s.alone[0]
		s.alone = s.alone[1:]
		if s.single == nil {
			// The brokers say what is too large here.
			s.single, _ = s.kafka.newClient(kgo.ProducerBatchMaxBytes(largestLimit)) // as for the first client
		}
		client := s.single
		s.mu.Unlock()
		switch {
		case s.ended.Err() != nil:
			x.endRecord(s.kafka.judge(x.ctx, x.record, kgo.ErrAborting))
		case x.hasFailed(x.key):
			x.endRecord(subscriber.ErrHeld)
		default:
			again := *x.record
			patient, cancel := context.WithTimeoutCause(x.ctx, s.kafka.Timeout, errNotTaken)
			err := client.ProduceSync(patient, &again).FirstErr()
			cancel()
			x.endRecord(s.kafka.judge(x.ctx, x.record, err))
		}
	}
}

// abort waits until nothing is on its way any more, and gives up what has not been sent.
func (s *session) abort(ctx context.Context) error {
	s.mu.Lock()
	single := s.single
	s.mu.Unlock()
	err := s.client.AbortBufferedRecords(ctx)
	if single != nil {
		err = errors.Join(err, single.AbortBufferedRecords(ctx))
	}
	return err
}

// close ends the connections and reports what is left.
func (s *session) close() {
	s.client.Close()
	s.mu.Lock()
	single := s.single
	s.mu.Unlock()
	if single != nil {
		single.Close()
	}
	s.workers.Wait()
}
