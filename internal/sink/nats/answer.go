package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/subscriber"
)

// headerTooLarge is the server's answer to a message whose headers are larger than a stream takes (JSStreamHeaderExceedsMaximumErr).
const headerTooLarge jetstream.ErrorCode = 10097

// judge says what an answer to a message means. Whatever is wrong but for the message itself is Away: no stream that
// captures the subject, one that is full or sealed or has no leader, rights.
func (s *session) judge(x *sending, err error) error {
	m := x.message
	var answer *jetstream.APIError
	switch {
	case errors.Is(err, client.ErrMaxPayload):
		return subscriber.Permanent(fmt.Errorf("the message has %d bytes with its headers, the server takes %d (max_payload)", sizeOf(m), s.conn.MaxPayload()))
	case errors.Is(err, client.ErrBadSubject):
		return subscriber.Permanent(fmt.Errorf("subject %.100q: %w", m.Subject, err))
	case errors.As(err, &answer) && answer.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return subscriber.Permanent(fmt.Errorf("the message has %d bytes with its headers, %s: %w", sizeOf(m), s.takes(m.Subject), err))
	case errors.As(err, &answer) && answer.ErrorCode == headerTooLarge:
		return subscriber.Permanent(fmt.Errorf("the headers of the message are too large, it has %d bytes with them: %w", sizeOf(m), err))
	case isNoResponder(err):
		return subscriber.Away(fmt.Errorf("no stream captures subject %s, or the one that does has no leader: make it, walpost makes none", m.Subject))
	case errors.Is(err, errNotAcknowledged):
		s.mu.Lock()
		inbox := s.inbox
		s.mu.Unlock()
		if inbox != nil {
			return subscriber.Away(s.nats.masked(fmt.Errorf("subject %s: no acknowledgement can come: %w", m.Subject, inbox)))
		}
		return subscriber.Away(fmt.Errorf("subject %s: not acknowledged within %s", m.Subject, s.nats.Timeout))
	case answer == nil && !s.conn.IsConnected():
		return s.notConnected()
	}
	return subscriber.Away(s.nats.masked(fmt.Errorf("subject %s: %w", m.Subject, err)))
}

// takes says what the stream of a subject takes. It is asked now: what is known of it may be from before.
func (s *session) takes(subject string) string {
	ctx, cancel := context.WithTimeout(s.life, describeFor)
	defer cancel()
	if name, err := s.js.StreamNameBySubject(ctx, subject); err == nil {
		s.streams.learn(ctx, s.js, name)
		if f := s.streams.named(name); f != nil && f.maxSize > 0 {
			return fmt.Sprintf("stream %s takes %d (max_msg_size)", name, f.maxSize)
		}
	}
	return "the stream takes less (max_msg_size)"
}

func isNoResponder(err error) bool {
	return errors.Is(err, client.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// isLocal tells of a message that was not given to a connection.
func isLocal(err error) bool {
	return errors.Is(err, client.ErrMaxPayload) || errors.Is(err, client.ErrBadSubject) || errors.Is(err, client.ErrReconnectBufExceeded)
}

// masking keeps the mask of the secrets as they were read last.
type masking struct {
	mu      sync.Mutex
	secrets [2]string  // guarded by mu
	mask    *mask.Mask // guarded by mu
}

// masked takes secrets out of an error: a server may quote what it got. Who compares errors finds them below it.
func (n *NATS) masked(err error) error {
	texts := n.Auth.SecretTexts()
	if len(texts) == 0 {
		return err
	}
	n.masking.mu.Lock()
	defer n.masking.mu.Unlock()
	if now := [2]string(texts); n.masking.mask == nil || n.masking.secrets != now {
		// What is on its way was sent with the secrets before.
		n.masking.mask = mask.New(append(texts, n.masking.secrets[:]...)...)
		n.masking.secrets = now
	}
	return n.masking.mask.Error(err)
}
