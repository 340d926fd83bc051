package lessons_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// postbox is a Notifier that keeps what it is given and fails where it is told to. It belongs to one goroutine.
type postbox struct {
	fail map[string]error // by event id
	sent []string         // event ids
	then func()           // called after each mail
}

func (p *postbox) Notify(_ context.Context, message lessons.Message) error {
	if err := p.fail[message.EventID]; err != nil {
		return err
	}
	p.sent = append(p.sent, message.EventID)
	if p.then != nil {
		p.then()
	}
	return nil
}

func newNotifications(db *testdb.DB, notifier lessons.Notifier) *lessons.Notifications {
	return lessons.NewNotifications(db.Pinned, "walpost", slog.New(slog.DiscardHandler), notifier)
}

// mails lists the rows, and whether their mail is marked as sent.
func mails(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	return texts(t, db, `SELECT event_id || CASE WHEN sent_at IS NULL THEN ' unsent' ELSE ' sent' END
		FROM public.notifications ORDER BY 1`)
}

func TestNotifications_sendAMailThatFailedAgain_andOneThatWasSentNot(t *testing.T) {
	db := testdb.New(t)
	away := errors.New("mail server away")
	box := &postbox{fail: map[string]error{"go-1-01": away}}
	sub := newNotifications(db, box)
	if err := sub.Handle(t.Context(), lessonOf(1, "go", 1)); !errors.Is(err, away) {
		t.Errorf("Handle = %v, want %v", err, away)
	}
	if got, want := mails(t, db), []string{"go-1-01 unsent"}; !slices.Equal(got, want) {
		t.Errorf("notifications = %q, want %q", got, want)
	}
	box.fail = nil
	for range 3 {
		if err := sub.Handle(t.Context(), lessonOf(1, "go", 1)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"go-1-01"}; !slices.Equal(box.sent, want) {
		t.Errorf("mails = %q, want %q", box.sent, want)
	}
	if got, want := mails(t, db), []string{"go-1-01 sent"}; !slices.Equal(got, want) {
		t.Errorf("notifications = %q, want %q", got, want)
	}
}

func TestNotifications_holdBackTheKeyOfAMailThatFails_andNoOther(t *testing.T) {
	db := testdb.New(t)
	busy, gone := errors.New("mailbox busy"), subscriber.Permanent(errors.New("no such mailbox"))
	box := &postbox{fail: map[string]error{"go-1-01": busy, "go-2-01": gone}}
	err := newNotifications(db, box).HandleBatch(t.Context(), []subscriber.Delivery{
		lessonOf(1, "go", 1), lessonOf(2, "go", 1), lessonOf(1, "go", 2), lessonOf(2, "go", 2), lessonOf(3, "go", 1),
	})
	var partial *subscriber.BatchError
	if !errors.As(err, &partial) {
		t.Fatalf("HandleBatch = %v, want a BatchError", err)
	}
	if want := map[int]error{0: busy, 1: gone, 2: subscriber.ErrHeld}; !maps.Equal(partial.Failed, want) {
		t.Errorf("failed = %v, want %v", partial.Failed, want)
	}
	if want := []string{"go-2-02", "go-3-01"}; !slices.Equal(box.sent, want) {
		t.Errorf("mails = %q, want %q", box.sent, want)
	}
	want := []string{"go-1-01 unsent", "go-1-02 unsent", "go-2-01 unsent", "go-2-02 sent", "go-3-01 sent"}
	if got := mails(t, db); !slices.Equal(got, want) {
		t.Errorf("notifications = %q, want %q", got, want)
	}
}

func TestNotifications_markWhatWasSentBeforeTheContextEnded(t *testing.T) {
	db := testdb.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	box := &postbox{then: cancel}
	err := newNotifications(db, box).HandleBatch(ctx, []subscriber.Delivery{lessonOf(1, "go", 1), lessonOf(2, "go", 1)})
	var partial *subscriber.BatchError
	if !errors.As(err, &partial) || len(partial.Failed) != 1 || !errors.Is(partial.Failed[1], context.Canceled) {
		t.Errorf("HandleBatch = %v, want the second event cancelled", err)
	}
	if got, want := mails(t, db), []string{"go-1-01 sent", "go-2-01 unsent"}; !slices.Equal(got, want) {
		t.Errorf("notifications = %q, want %q", got, want)
	}
}

func TestSubscribers_logEveryLineWithEventAndCorrelationID(t *testing.T) {
	db := testdb.New(t)
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	fromHeader := lessonOf(1, "go", 2)
	fromHeader.Headers = []byte(`{"correlation_id": "c-go-1-02"}`)
	for _, sub := range []subscriber.BatchSubscriber{
		lessons.NewAchievements(db.Pinned, "walpost", log),
		lessons.NewAnalytics(db.Pinned, "walpost", log),
		lessons.NewNotifications(db.Pinned, "walpost", log, lessons.NewLogNotifier(log)),
		lessons.NewRecommendations(db.Pinned, "walpost", log),
	} {
		lines.Reset()
		if err := sub.HandleBatch(t.Context(), []subscriber.Delivery{lessonOf(1, "go", 1), fromHeader}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"go-1-01", "go-1-02"} {
			if !strings.Contains(lines.String(), "event="+id+" correlation_id=c-"+id) {
				t.Errorf("%s logged nothing about %s:\n%s", sub.Name(), id, &lines)
			}
		}
		for line := range strings.Lines(lines.String()) {
			if !strings.Contains(line, " event=") || !strings.Contains(line, " correlation_id=c-") {
				t.Errorf("%s logged a line without its ids: %s", sub.Name(), line)
			}
		}
	}
}
