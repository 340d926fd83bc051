package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/event"
)

// Recorded implements subscriber.Rememberer.
func (k *Kafka) Recorded(secured, finished event.Position) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now != nil {
		k.now.trail.advance(secured, finished)
	}
}

// begin takes the transactional id over, and finds what was committed under it and may come again. From then on nothing more
// is committed by another. The caller holds the turn.
func (s *session) begin(ctx context.Context) error {
	if s.begun {
		return nil
	}
	if _, _, err := s.client.ProducerID(ctx); err != nil {
		return fmt.Errorf("take over the transactional id: %w", err)
	}
	places, ends, err := s.places(ctx)
	if err != nil {
		return fmt.Errorf("ask the brokers what was committed last: %w", err)
	}
	found, unread, err := s.readBack(ctx, places, ends)
	if err != nil {
		return fmt.Errorf("read what was committed last: %w", err)
	}
	s.trail.load(places, found, unread, time.Now())
	s.begun = true
	s.workers.Go(s.keepPlaces)
	return nil
}

// patience is how long a partition that gives nothing is waited for at a begin, so that time is left to send.
func (k *Kafka) patience() time.Duration { return k.Timeout / 4 }

// places are where to read the partitions from, and their ends, -1 where no broker tells. A partition of a topic that is no
// more, or that was made again, has no place.
func (s *session) places(ctx context.Context) (map[partition]place, map[partition]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.kafka.Timeout)
	defer cancel()
	places, ends := map[partition]place{}, map[partition]int64{}
	group := s.kafka.transactionalID()
	offsets, err := s.admin.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return places, ends, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("offsets of group %s: %w", group, err)
	}
	topics := slices.Sorted(maps.Keys(offsets))
	if len(topics) == 0 {
		return places, ends, nil
	}
	var some *kadm.ShardErrors // of brokers that do not answer
	soon, cancelSoon := context.WithTimeout(ctx, s.kafka.patience())
	defer cancelSoon()
	last, err := s.admin.ListEndOffsets(soon, topics...)
	if err != nil && !errors.As(err, &some) && soon.Err() == nil {
		return nil, nil, err
	}
	for topic, of := range offsets {
		if all, ok := last.Lookup(topic, -1); ok && errors.Is(all.Err, kerr.UnknownTopicOrPartition) {
			continue
		}
		for number, o := range of {
			if o.Err != nil {
				return nil, nil, fmt.Errorf("offset of %s/%d of group %s: %w", topic, number, group, o.Err)
			}
			p := partition{topic, number}
			end, ok := last.Lookup(topic, number)
			switch {
			case !ok || end.Err != nil:
				ends[p] = -1
			case o.At > end.Offset:
				continue
			default:
				ends[p] = end.Offset
			}
			places[p] = placeOf(o.Offset)
		}
	}
	return places, ends, nil
}

// readBack reads the partitions from their places to their ends, and keeps which events are there. unread are the partitions
// that cannot be read now. Only what was committed by our own producer ids counts: who may write to the topic must not keep
// an event from it.
func (s *session) readBack(ctx context.Context, places map[partition]place, ends map[partition]int64) (found []sent, unread []partition, err error) {
	k := s.kafka
	from, left := map[string]map[int32]kgo.Offset{}, map[partition]int64{}
	for p, of := range places {
		switch end := ends[p]; {
		case end < 0:
			unread = append(unread, p)
		case of.at < end:
			if from[p.topic] == nil {
				from[p.topic] = map[int32]kgo.Offset{}
			}
			from[p.topic][p.number] = kgo.NewOffset().At(of.at)
			left[p] = end
		}
	}
	if len(left) == 0 {
		return nil, unread, nil
	}
	// A batch may be as large as largestLimit, and comes whole. Control records tell that the end of a partition is reached
	// where it is a transaction that was rolled back.
	reader, err := k.newClient(kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.BrokerMaxReadBytes(2*largestLimit), kgo.FetchMaxWait(250*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	defer reader.Close()
	for len(left) > 0 {
		wait, cancel := context.WithTimeout(ctx, k.patience())
		fetches := reader.PollFetches(wait)
		waited := wait.Err()
		cancel()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if waited != nil { // no leader, or the open transaction of another producer
			return found, slices.AppendSeq(unread, maps.Keys(left)), nil
		}
		if err := fetches.Err(); err != nil {
			return nil, nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := partition{r.Topic, r.Partition}
			if end, reading := left[p]; reading && r.Offset >= end-1 {
				delete(left, p)
			}
			if r.Attrs.IsControl() || !r.Attrs.IsTransactional() || !slices.Contains(places[p].producers, r.ProducerID) {
				return
			}
			if id, of, ok := readIdentity(r); ok {
				s.seen[id] = struct{}{}
				found = append(found, of)
			}
		})
	}
	return found, unread, nil
}

// errCommittedBefore is met by a transaction whose partition could not be read before.
var errCommittedBefore = errors.New("an event of the transaction is committed already")

// readRest reads back the partitions of a transaction that could not be read before: now they take records. The transaction
// must not commit when one of its events is there.
func (s *session) readRest(ctx context.Context, all []*sending, records []sent) error {
	places, ends := map[partition]place{}, map[partition]int64{}
	for _, r := range records {
		if of, ok := s.trail.unreadPlace(r.partition); ok {
			if end, again := ends[r.partition]; !again || r.offset < end {
				ends[r.partition] = r.offset // the transaction is open: nothing behind can be read
			}
			places[r.partition] = of
		}
	}
	if len(places) == 0 {
		return nil
	}
	found, unread, err := s.readBack(ctx, places, ends)
	if err == nil && len(unread) > 0 {
		err = fmt.Errorf("the brokers give nothing of topic %s, partition %d", unread[0].topic, unread[0].number)
	}
	if err != nil {
		return fmt.Errorf("read what was committed last: %w", err)
	}
	s.trail.load(places, found, nil, time.Now())
	for _, x := range all {
		if s.isCommitted(x) {
			return errCommittedBefore
		}
	}
	return nil
}

// isCommitted tells whether a delivery was found. One that a person has asked for again is sent all the same.
func (s *session) isCommitted(x *sending) bool {
	if len(s.seen) == 0 || x.delivery.Replay {
		return false
	}
	_, committed := s.seen[identityOf(x.delivery.Identity(), x.record.Topic)]
	return committed
}

// noteFor notes the places of a transaction that is to be committed.
func (s *session) noteFor(ctx context.Context, all []sent) error {
	producer, _, err := s.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	if len(s.trail.unnoted(all, producer)) == 0 {
		return nil
	}
	s.noting.Lock()
	defer s.noting.Unlock()
	return s.notePlaces(ctx, s.trail.unnoted(all, producer))
}

// notePlaces writes places to the brokers. Its caller holds noting.
func (s *session) notePlaces(ctx context.Context, places map[partition]place) error {
	if len(places) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.kafka.Timeout)
	defer cancel()
	offsets := kadm.Offsets{}
	for p, of := range places {
		offsets.Add(p.offsetOf(of))
	}
	group := s.kafka.transactionalID()
	noted, err := s.admin.CommitOffsets(ctx, group, offsets)
	if err == nil {
		err = noted.Error()
	}
	if err != nil {
		return fmt.Errorf("note in the offsets of group %s from where to read back: %w", group, err)
	}
	s.trail.notePlaces(places)
	return nil
}

// keepPlaces lets the places follow what is recorded, until the session ends.
func (s *session) keepPlaces() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.ended.Done():
			return
		case <-tick.C:
		}
		s.trail.forget(time.Now())
		if s.trail.resolved() {
			s.resolved.Store(true)
		}
		s.noting.Lock()
		// What cannot be noted now is later: until then a successor reads more than it would have to.
		_ = s.notePlaces(s.ended, s.trail.behind())
		s.noting.Unlock()
	}
}
