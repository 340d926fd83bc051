package subscriber

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Notifications tells learners by mail that a lesson is completed.
//
// The row in notifications appears once per event: the event id is its key. The mail is sent at least
// once, because no mail server takes part in a transaction: a process that dies between the mail and
// sent_at sends it again, with the same Message-ID, by which mail programs can tell. It is safe for
// concurrent use.
type Notifications struct {
	pool     *pgxpool.Pool
	log      *slog.Logger
	notifier Notifier
}

// NewNotifications returns the subscriber "notifications", which sends through notifier. It needs no
// record in the inbox, so the slot is not used.
func NewNotifications(pool *pgxpool.Pool, _ string, log *slog.Logger, notifier Notifier) *Notifications {
	return &Notifications{pool: pool, log: log, notifier: notifier}
}

// Name is "notifications".
func (*Notifications) Name() string { return "notifications" }

// Wants is true for "lesson.completed".
func (*Notifications) Wants(eventType string) bool { return wantsLessons(eventType) }

// Handle is HandleBatch for one event.
func (n *Notifications) Handle(ctx context.Context, delivery Delivery) error {
	return handleOne(ctx, n, delivery)
}

// HandleBatch writes the rows of the batch in one statement and sends the mails that were not sent
// before, one after the other. A mail that fails holds back later ones of its key, and no others.
func (n *Notifications) HandleBatch(ctx context.Context, deliveries []Delivery) error {
	lessons, failed := readLessons(deliveries)
	if len(lessons) == 0 {
		return batchResult(failed)
	}
	unsent, err := n.write(ctx, lessons)
	if err != nil {
		return fmt.Errorf("write %d rows to notifications: %w", len(lessons), err)
	}
	stuck := make(map[string]bool) // keys
	sent := outgoing{pool: n.pool, log: n.log, marked: time.Now()}
	for _, l := range lessons {
		switch key := l.Delivery.Key; {
		case !unsent[l.Delivery.ID]:
			// Sent at an earlier attempt.
		case stuck[key]:
			failed[l.Index] = ErrHeld
		default:
			if err := n.notify(ctx, l); err != nil {
				failed[l.Index] = err
				stuck[key] = !IsPermanent(err)
			} else if err := sent.add(ctx, l); err != nil {
				return err
			}
		}
	}
	if err := sent.mark(ctx); err != nil {
		return err
	}
	return batchResult(failed)
}

// write makes sure that the rows are there and returns the ids of those whose mail is not known to be sent.
func (n *Notifications) write(ctx context.Context, lessons []lesson) (unsent map[string]bool, err error) {
	ids := column(lessons, idOf)
	// In the order of the key, so that two batches with events in common cannot deadlock.
	err = execute(ctx, n.pool, `
		INSERT INTO public.notifications (event_id, user_id, message)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[])
		ORDER BY 1
		ON CONFLICT (event_id) DO NOTHING`,
		ids, column(lessons, userOf), column(lessons, textOf))
	if err != nil {
		return nil, err
	}
	rows, err := n.pool.Query(ctx, `
		SELECT event_id FROM public.notifications WHERE event_id = ANY ($1) AND sent_at IS NULL`, ids)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	unsent = make(map[string]bool, len(list))
	for _, id := range list {
		unsent[id] = true
	}
	return unsent, err
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
	markEvery = time.Second
	// Marking goes on after the batch's context has ended, or everything in hand would be sent again;
	// this is how long it may keep the batch from returning.
	markTimeout = 2 * time.Second
)

// outgoing keeps the mails that were sent and are not yet marked so.
type outgoing struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	lessons []lesson
	marked  time.Time
}

func (o *outgoing) add(ctx context.Context, l lesson) error {
	o.lessons = append(o.lessons, l)
	if time.Since(o.marked) < markEvery {
		return nil
	}
	return o.mark(ctx)
}

func (o *outgoing) mark(ctx context.Context) error {
	if len(o.lessons) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	// The rows are locked in the order of the key first: an UPDATE alone locks them as it meets them.
	err := execute(ctx, o.pool, `
		WITH unsent AS (
			SELECT event_id FROM public.notifications
			WHERE event_id = ANY ($1) AND sent_at IS NULL
			ORDER BY event_id FOR UPDATE
		)
		UPDATE public.notifications AS n SET sent_at = now() FROM unsent WHERE n.event_id = unsent.event_id`,
		column(o.lessons, idOf))
	if err != nil {
		return fmt.Errorf("mark %d notifications as sent: %w", len(o.lessons), err)
	}
	logHandled(ctx, o.log, "learner notified", o.lessons)
	o.lessons, o.marked = nil, time.Now()
	return nil
}
