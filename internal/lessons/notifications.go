package lessons

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Notifications tells learners by mail that a lesson is completed.
//
// The row in notifications appears once per event: the event id is its key. The mail is sent at least
// once, because no mail server takes part in a transaction: a process that dies between the mail and
// sent_at sends it again, with the same Message-ID, by which mail programs can tell. It is safe for
// concurrent use.
type Notifications struct {
	pool     *postgres.Pool
	log      *slog.Logger
	notifier Notifier
}

// NewNotifications returns the subscriber "notifications", which sends through notifier. It needs neither
// the inbox nor the leadership of the slot, so that is not used: see outgoing.
func NewNotifications(pool *postgres.Pool, _ string, log *slog.Logger, notifier Notifier) *Notifications {
	return &Notifications{pool: pool, log: log, notifier: notifier}
}

// Name is "notifications".
func (*Notifications) Name() string { return "notifications" }

// Wants is true for "lesson.completed".
func (*Notifications) Wants(eventType string) bool { return wantsLessons(eventType) }

// Types is what it Wants, as data.
func (*Notifications) Types() []string { return lessonTypes() }

// Handle is HandleBatch for one event.
func (n *Notifications) Handle(ctx context.Context, delivery subscriber.Delivery) error {
	return subscriber.HandleOne(ctx, n, delivery)
}

// HandleBatch sends the mails that were not sent before, one after the other, and then writes the rows of
// the batch in one statement: one commit, which is what an event costs. A mail that fails holds back later
// ones of its key, and no others; its row is there all the same, without sent_at.
func (n *Notifications) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	lessons, failed := readLessons(deliveries)
	if len(lessons) == 0 {
		return subscriber.FailedOf(failed)
	}
	sent, err := n.sent(ctx, lessons)
	if err != nil {
		return fmt.Errorf("read notifications for a batch of %d: %w", len(lessons), err)
	}
	stuck := make(map[string]bool) // keys
	done := outgoing{pool: n.pool, log: n.log, written: time.Now()}
	for _, l := range lessons {
		switch key := l.Delivery.Key; {
		case sent[l.Delivery.ID]:
			// At an earlier attempt, or by another delivery of this batch.
		case stuck[key]:
			failed[l.Index] = subscriber.ErrHeld
			done.unsent = append(done.unsent, l)
		default:
			if err := n.notify(ctx, l); err != nil {
				failed[l.Index] = err
				stuck[key] = !subscriber.IsPermanent(err)
				done.unsent = append(done.unsent, l)
				continue
			}
			sent[l.Delivery.ID] = true
			done.sent = append(done.sent, l)
			if time.Since(done.written) >= writeEvery {
				if err := done.write(ctx); err != nil {
					return err
				}
			}
		}
	}
	if err := done.write(ctx); err != nil {
		return err
	}
	return subscriber.FailedOf(failed)
}

// sent returns the ids of those whose mail is known to be sent.
func (n *Notifications) sent(ctx context.Context, lessons []lesson) (map[string]bool, error) {
	rows, err := n.pool.Query(ctx, `
		SELECT event_id FROM public.notifications WHERE event_id = ANY ($1) AND sent_at IS NOT NULL`, column(lessons, idOf))
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	sent := make(map[string]bool, len(list))
	for _, id := range list {
		sent[id] = true
	}
	return sent, err
}

func (n *Notifications) notify(ctx context.Context, l lesson) error {
	if ctx.Err() != nil {
		return fmt.Errorf("notify learner: %w", context.Cause(ctx))
	}
	return n.notifier.Notify(ctx, Message{
		EventID:       l.Delivery.ID,
		CorrelationID: l.correlationID(),
		UserID:        l.UserID,
		Subject:       "Lesson completed: " + l.LessonSlug,
		Text:          textOf(l),
	})
}

func textOf(l lesson) string {
	return fmt.Sprintf("You have completed the lesson %s of the track %s.", l.LessonSlug, l.TrackSlug)
}

const (
	// A process that dies sends the mails of this time again.
	writeEvery = time.Second
	// Writing goes on after the batch's context has ended, or everything in hand would be sent again;
	// this is how long it may keep the batch from returning.
	writeTimeout = 2 * time.Second
)

// outgoing keeps what became of the mails until it is written. That is no part of a leadership: a mail that
// went out stays so under the next leader, and one that is recorded is not sent again.
type outgoing struct {
	pool         *postgres.Pool
	log          *slog.Logger
	sent, unsent []lesson
	written      time.Time
}

func (o *outgoing) write(ctx context.Context) error {
	all := slices.Concat(o.sent, o.unsent)
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	// In the order of the key, so that two batches with events in common cannot deadlock; each event once,
	// as an upsert must not meet a row twice.
	err := execute(ctx, o.pool, "", 0, `
		INSERT INTO public.notifications AS n (event_id, user_id, message, sent_at)
		SELECT DISTINCT ON (event_id) event_id, user_id, message, CASE WHEN nr <= $4 THEN now() END
		FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS a(event_id, user_id, message, nr)
		ORDER BY event_id, nr
		ON CONFLICT (event_id) DO UPDATE SET sent_at = excluded.sent_at WHERE n.sent_at IS NULL AND excluded.sent_at IS NOT NULL`,
		column(all, idOf), column(all, userOf), column(all, textOf), len(o.sent))
	if err != nil {
		return fmt.Errorf("write to notifications for a batch of %d: %w", len(all), err)
	}
	logHandled(ctx, o.log, "learner notified", o.sent)
	o.sent, o.unsent, o.written = nil, nil, time.Now()
	return nil
}
