package lessons_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// lessonOf is the event that user completed lesson n (from 1) of a track, n minutes after start.
func lessonOf(user int64, track string, n int) subscriber.Delivery {
	id := fmt.Sprintf("%s-%d-%02d", track, user, n)
	return subscriber.Delivery{Attempt: 1, Event: &event.Event{
		Source: "lessons", ID: id, Type: lessons.TypeLessonCompleted, Key: fmt.Sprint(user),
		Payload: fmt.Appendf(nil, `{"event_id": %q, "type": "lesson.completed", "correlation_id": "c-%s", "occurred_at": %q,
			"user_id": %d, "lesson_id": %d, "track_slug": %q, "lesson_slug": "lesson-%d"}`,
			id, id, start.Add(time.Duration(n)*time.Minute).Format(time.RFC3339), user, n+1000*len(track), track, n),
	}}
}

// complete is the write side's part: the rows in lesson_progress.
func complete(t *testing.T, db *testdb.DB, deliveries ...subscriber.Delivery) {
	t.Helper()
	for _, delivery := range deliveries {
		lesson, err := lessons.ParseLessonCompleted(delivery.Payload)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.Pool.Exec(t.Context(), `INSERT INTO public.lesson_progress VALUES ($1, $2, $3, $4, true, $5, $6)`,
			lesson.UserID, lesson.LessonID, lesson.TrackSlug, lesson.LessonSlug, lesson.OccurredAt, delivery.ID)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// texts runs a query of one text column.
func texts(t *testing.T, db *testdb.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func achievements(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	return texts(t, db, `SELECT format('%s %s after %s minutes', user_id, achievement_slug,
		extract(epoch FROM earned_at - $1)::int / 60) FROM public.user_achievements ORDER BY 1`, start)
}

func newAchievements(db *testdb.DB) *lessons.Achievements {
	return lessons.NewAchievements(db.Pinned, "walpost", slog.New(slog.DiscardHandler))
}

func TestAchievements_areGrantedAtOneFiveAndTenLessonsOfATrack(t *testing.T) {
	db := testdb.New(t)
	sub := newAchievements(db)
	counts := make(map[int]int)
	for n := 1; n <= 11; n++ {
		delivery := lessonOf(7, "go", n)
		complete(t, db, delivery)
		if err := sub.Handle(t.Context(), delivery); err != nil {
			t.Fatal(err)
		}
		counts[n] = len(achievements(t, db))
	}
	for n, want := range map[int]int{1: 1, 4: 1, 5: 2, 9: 2, 10: 3, 11: 3} {
		if got := counts[n]; got != want {
			t.Errorf("achievements after %d lessons: %d, want %d", n, got, want)
		}
	}
	got := achievements(t, db)
	want := []string{"7 first_lesson after 1 minutes", "7 five_lessons after 5 minutes", "7 track_go_master after 10 minutes"}
	if !slices.Equal(got, want) {
		t.Errorf("achievements = %q, want %q", got, want)
	}
}

func TestAchievements_countEachTrackAndEachLearnerAlone(t *testing.T) {
	db := testdb.New(t)
	var batch []subscriber.Delivery
	for n := 1; n <= 4; n++ {
		batch = append(batch, lessonOf(1, "go", n), lessonOf(1, "postgres", n), lessonOf(2, "go", n))
	}
	complete(t, db, batch...)
	if err := newAchievements(db).HandleBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	got := achievements(t, db)
	if want := []string{"1 first_lesson after 1 minutes", "2 first_lesson after 1 minutes"}; !slices.Equal(got, want) {
		t.Errorf("achievements = %q, want %q", got, want)
	}
}

func TestAchievements_countOnlyCompletedLessons(t *testing.T) {
	db := testdb.New(t)
	for n := 1; n <= 9; n++ {
		complete(t, db, lessonOf(1, "go", n))
	}
	if _, err := db.Pool.Exec(t.Context(), `UPDATE public.lesson_progress SET completed = false WHERE lesson_slug > 'lesson-3'`); err != nil {
		t.Fatal(err)
	}
	if err := newAchievements(db).Handle(t.Context(), lessonOf(1, "go", 1)); err != nil {
		t.Fatal(err)
	}
	if got, want := achievements(t, db), []string{"1 first_lesson after 1 minutes"}; !slices.Equal(got, want) {
		t.Errorf("achievements = %q, want %q", got, want)
	}
}

func TestAchievements_areRightWhenTheLastEventComesFirst(t *testing.T) {
	db := testdb.New(t)
	var deliveries []subscriber.Delivery
	for n := 1; n <= 10; n++ {
		deliveries = append(deliveries, lessonOf(1, "go", n))
	}
	complete(t, db, deliveries...)
	sub := newAchievements(db)
	for _, delivery := range slices.Backward(deliveries) {
		if err := sub.Handle(t.Context(), delivery); err != nil {
			t.Fatal(err)
		}
	}
	got := achievements(t, db)
	want := []string{"1 first_lesson after 1 minutes", "1 five_lessons after 5 minutes", "1 track_go_master after 10 minutes"}
	if !slices.Equal(got, want) {
		t.Errorf("achievements = %q, want %q", got, want)
	}
}

// With a synchronous standby the event of the fifth lesson comes before its row can be seen.
func TestAchievements_countTheEventsOwnLessonBeforeItsRowIsVisible(t *testing.T) {
	db := testdb.New(t)
	for n := 1; n <= 4; n++ {
		complete(t, db, lessonOf(1, "go", n))
	}
	if err := newAchievements(db).Handle(t.Context(), lessonOf(1, "go", 5)); err != nil {
		t.Fatal(err)
	}
	got := achievements(t, db)
	if want := []string{"1 first_lesson after 1 minutes", "1 five_lessons after 5 minutes"}; !slices.Equal(got, want) {
		t.Errorf("achievements = %q, want %q", got, want)
	}
}

func TestRecommendations_countEachEventOnceAndRecordIt(t *testing.T) {
	db := testdb.New(t)
	sub := lessons.NewRecommendations(db.Pinned, "a-slot", slog.New(slog.DiscardHandler))
	batch := []subscriber.Delivery{lessonOf(1, "go", 1), lessonOf(1, "go", 2), lessonOf(2, "go", 1), lessonOf(1, "sql", 1)}
	if err := sub.HandleBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := sub.HandleBatch(t.Context(), append(batch, lessonOf(1, "go", 3))); err != nil {
		t.Fatal(err)
	}
	got := texts(t, db, `SELECT format('%s %s: %s', user_id, track_slug, completed) FROM public.recommendations ORDER BY 1`)
	if want := []string{"1 go: 3", "1 sql: 1", "2 go: 1"}; !slices.Equal(got, want) {
		t.Errorf("recommendations = %q, want %q", got, want)
	}
	got = texts(t, db, `SELECT slot || ' ' || subscriber || ' ' || event_id FROM walpost.inbox ORDER BY 1`)
	want := []string{
		"a-slot recommendations go-1-01", "a-slot recommendations go-1-02", "a-slot recommendations go-1-03",
		"a-slot recommendations go-2-01", "a-slot recommendations sql-1-01",
	}
	if !slices.Equal(got, want) {
		t.Errorf("inbox = %q, want %q", got, want)
	}
}

// The commit waits for the flush even where the role says otherwise: an event that counts as delivered is
// never sent again.
func TestSubscribers_commitDurably(t *testing.T) {
	db := testdb.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		CREATE TABLE public.seen (setting text);
		CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE TRIGGER see BEFORE INSERT ON public.analytics_events FOR EACH ROW EXECUTE FUNCTION public.see();
		CREATE TRIGGER see BEFORE INSERT ON public.recommendations FOR EACH ROW EXECUTE FUNCTION public.see();
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`,
	); err != nil {
		t.Fatal(err)
	}
	db.Pool.Reset() // new sessions have the setting
	log := slog.New(slog.DiscardHandler)
	for _, sub := range []subscriber.Subscriber{
		lessons.NewAnalytics(db.Pinned, "walpost", log), lessons.NewRecommendations(db.Pinned, "walpost", log),
	} {
		if err := sub.Handle(t.Context(), lessonOf(1, "go", 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := texts(t, db, `SELECT setting FROM public.seen`), []string{"on", "on"}; !slices.Equal(got, want) {
		t.Errorf("synchronous_commit = %q, want %q", got, want)
	}
}
