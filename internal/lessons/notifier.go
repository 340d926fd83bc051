package lessons

import (
	"context"
	"log/slog"
)

// A Notifier tells a learner something. It returns nil when the message is out of its hands, an error
// marked Permanent when this learner can never be reached, and any other error when a later attempt may
// succeed. It returns when ctx ends, and is safe for concurrent use.
type Notifier interface {
	Notify(ctx context.Context, message Message) error
}

// A Message is what a learner is told.
type Message struct {
	// EventID is the event that is the reason. It is the identity of the message: the same event, sent
	// again, is the same message.
	EventID string
	// CorrelationID is that of the event, for the log; it may be "".
	CorrelationID string
	UserID        int64
	Subject       string // one line
	Text          string
}

// LogNotifier writes messages to a log instead of sending them.
type LogNotifier struct{ log *slog.Logger }

// NewLogNotifier returns a Notifier for installations without a mail server.
func NewLogNotifier(log *slog.Logger) LogNotifier { return LogNotifier{log} }

// Notify writes one line and succeeds, unless ctx has ended.
func (n LogNotifier) Notify(ctx context.Context, message Message) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	n.log.InfoContext(ctx, "message for learner", "event", message.EventID,
		"correlation_id", message.CorrelationID, "user_id", message.UserID, "subject", message.Subject)
	return nil
}
