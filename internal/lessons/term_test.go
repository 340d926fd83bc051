package lessons_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// under gives a delivery the term of a leadership.
func under(term int64, d subscriber.Delivery) subscriber.Delivery {
	d.Term = term
	return d
}

func TestSubscribers_haveNoEffectUnderALeadershipThatIsOver(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.fence (slot, n, term) SELECT 's', n, 8 FROM generate_series(0, 127) n`)
	log := slog.New(slog.DiscardHandler)
	for table, sub := range map[string]subscriber.Subscriber{
		"user_achievements": lessons.NewAchievements(db.Pinned, "s", log),
		"analytics_events":  lessons.NewAnalytics(db.Pinned, "s", log),
		"recommendations":   lessons.NewRecommendations(db.Pinned, "s", log),
	} {
		d := lessonOf(1, "go", 1)
		if err := sub.Handle(t.Context(), under(7, d)); !errors.Is(err, subscriber.ErrOldTerm) {
			t.Errorf("%s under an old term: %v, want ErrOldTerm", sub.Name(), err)
		}
		if got := db.Int(`SELECT count(*) FROM ` + table); got != 0 {
			t.Errorf("%s has an effect under an old term", sub.Name())
		}
		if err := sub.Handle(t.Context(), under(8, d)); err != nil {
			t.Errorf("%s under the term that is: %v", sub.Name(), err)
		}
		if got := db.Int(`SELECT count(*) FROM ` + table); got != 1 {
			t.Errorf("%s has %d effects, want the one under the term that is", sub.Name(), got)
		}
	}
	if got := db.Int(`SELECT count(*) FROM walpost.inbox`); got != 1 {
		t.Errorf("%d records in the inbox, want one", got)
	}
}
