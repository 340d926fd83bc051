package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/subscriber"
)

// isFault tells whether an answer is about the records of a batch, or one of them: the brokers refuse a batch whole.
func isFault(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}

// isFenced tells whether the brokers have refused us for another that has the same transactional id.
func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// judge says what the brokers' answer to a record that was alone in its batch means. Whatever is wrong but for the record
// itself is Away: a partition without a leader, a topic without rights.
func (k *Kafka) judge(ctx context.Context, r *kgo.Record, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge):
		return subscriber.Permanent(fmt.Errorf("the record has %d bytes before compression, and the brokers refuse it: %w", sizeOf(r), err))
	case isFault(err):
		return subscriber.Permanent(k.masked(fmt.Errorf("topic %s: %w", r.Topic, err)))
	case isFenced(err):
		return k.masked(fmt.Errorf("%w: %w", subscriber.ErrOldTerm, err))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errNotTaken):
		return subscriber.Away(fmt.Errorf("topic %s: %w", r.Topic, errNotTaken))
	case errors.Is(err, kgo.ErrAborting), errors.Is(err, kgo.ErrClientClosed), errors.Is(err, context.Canceled):
		return subscriber.Away(fmt.Errorf("given up: %w", err))
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return subscriber.Away(unknownTopic(r.Topic))
	}
	return subscriber.Away(k.masked(fmt.Errorf("topic %s: %w", r.Topic, err)))
}

// masking keeps the mask of the secrets as they were read last.
type masking struct {
	mu      sync.Mutex
	secrets [2]string  // guarded by mu
	mask    *mask.Mask // guarded by mu
}

// masked takes secrets out of an error: a broker may quote what it got. Who compares errors finds them below it.
func (k *Kafka) masked(err error) error {
	texts := k.SASL.SecretTexts()
	if len(texts) == 0 {
		return err
	}
	k.masking.mu.Lock()
	defer k.masking.mu.Unlock()
	if now := [2]string(texts); k.masking.mask == nil || k.masking.secrets != now {
		// What is on its way was sent with the secrets before.
		k.masking.mask = mask.New(append(texts, k.masking.secrets[:]...)...)
		k.masking.secrets = now
	}
	return k.masking.mask.Error(err)
}
