package lessons

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func completion(user, lesson int64) Completion {
	return Completion{UserID: user, LessonID: lesson, TrackSlug: "go", LessonSlug: "slices", CorrelationID: "corr-1"}
}

// wantRows checks that there are as many completions as events, and so many.
func wantRows(t *testing.T, db *testdb.DB, want int64) {
	t.Helper()
	if got := db.Int("SELECT count(*) FROM public.lesson_progress WHERE completed"); got != want {
		t.Errorf("%d completions, want %d", got, want)
	}
	if got := db.Int("SELECT count(*) FROM public.outbox"); got != want {
		t.Errorf("%d events, want %d", got, want)
	}
}

func TestComplete_writesProgressAndEventTogether(t *testing.T) {
	db := testdb.New(t)
	s := New(db.Pinned)
	c := completion(42, 7)
	c.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	result, err := s.Complete(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if result.AlreadyCompleted {
		t.Error("the first completion is said to be a repeated one")
	}

	var payload []byte
	var eventType, aggregateType, aggregateID, key, correlation, trace string
	err = db.Pool.QueryRow(t.Context(), `
		SELECT event_type, aggregate_type, aggregate_id, partition_key, payload, headers->>'correlation_id', headers->>'traceparent'
		FROM public.outbox WHERE event_id = $1`, result.EventID).
		Scan(&eventType, &aggregateType, &aggregateID, &key, &payload, &correlation, &trace)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{eventType, aggregateType, aggregateID, key, correlation, trace}
	want := []string{"lesson.completed", "lesson", "7", "42", c.CorrelationID, c.TraceParent}
	if !slices.Equal(got, want) {
		t.Errorf("outbox row has %q, want %q", got, want)
	}
	lesson, err := ParseLessonCompleted(payload)
	if err != nil {
		t.Fatal(err)
	}
	wantLesson := LessonCompleted{
		EventID: result.EventID, Type: "lesson.completed", CorrelationID: "corr-1", OccurredAt: result.CompletedAt,
		UserID: 42, LessonID: 7, TrackSlug: "go", LessonSlug: "slices",
	}
	if lesson != wantLesson {
		t.Errorf("payload is %+v, want %+v", lesson, wantLesson)
	}
	wantRows(t, db, 1)
}

// F-47
func TestComplete_returnsTheFirstResultWhenItIsRepeated(t *testing.T) {
	db := testdb.New(t)
	s := New(db.Pinned)
	first, err := s.Complete(t.Context(), completion(42, 7))
	if err != nil {
		t.Fatal(err)
	}

	// A day later, by a process that has restarted.
	later := New(db.Pinned)
	later.clock = func() time.Time { return time.Now().Add(24 * time.Hour) }
	got, err := later.Complete(t.Context(), completion(42, 7))
	if err != nil {
		t.Fatal(err)
	}
	want := first
	want.AlreadyCompleted = true
	if got != want {
		t.Errorf("repeated completion gave %+v, want %+v", got, want)
	}
	wantRows(t, db, 1)
}

func TestComplete_writesOneEventWhenFiftyCallsArriveAtOnce(t *testing.T) {
	db := testdb.New(t)
	s := New(db.Pinned)
	const calls = 50
	results := make([]Result, calls)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			<-start
			var err error
			if results[i], err = s.Complete(t.Context(), completion(42, 7)); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()

	news := 0
	for _, r := range results {
		if !r.AlreadyCompleted {
			news++
		}
		if r.EventID != results[0].EventID || !r.CompletedAt.Equal(results[0].CompletedAt) {
			t.Errorf("results differ: %+v and %+v", r, results[0])
		}
	}
	if news != 1 {
		t.Errorf("%d calls are said to have completed the lesson, want 1", news)
	}
	wantRows(t, db, 1)
}

func TestComplete_completesALessonThatWasOnlyBegun(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`INSERT INTO public.lesson_progress (user_id, lesson_id, track_slug, lesson_slug) VALUES (42, 7, 'old', 'old')`)
	result, err := New(db.Pinned).Complete(t.Context(), completion(42, 7))
	if err != nil {
		t.Fatal(err)
	}
	if result.AlreadyCompleted {
		t.Error("the completion is said to be a repeated one")
	}
	wantRows(t, db, 1)
}

// overtake starts a completion that stops while it holds its user's lock and has no row number yet,
// then the second one, and lets the first go on only when the second waits for it. meanwhile runs before that.
func overtake(t *testing.T, db *testdb.DB, pool *postgres.Pool, first, second Completion, meanwhile func(context.Context)) (results [2]Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// What is called slow waits, in the middle of its first batch, for a lock that we hold.
	db.Exec(`
		CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
		CREATE TRIGGER wait BEFORE INSERT ON public.lesson_progress FOR EACH ROW WHEN (NEW.event_id = 'slow') EXECUTE FUNCTION public.wait()`)
	holder, err := db.Pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(ctx, `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	waiting := func(want int64) {
		for db.Int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) < want {
			if ctx.Err() != nil {
				t.Fatalf("there were never %d completions that wait", want)
			}
		}
	}

	slow := New(pool)
	slow.ids = func(time.Time) string { return "slow" }
	var errs [2]error
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { results[0], errs[0] = slow.Complete(ctx, first) })
	waiting(1)
	wg.Go(func() { results[1], errs[1] = New(pool).Complete(ctx, second) })
	waiting(2)
	meanwhile(ctx)
	if _, err := holder.Exec(ctx, `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return results
}

// S-62: what any role can hold keeps no completion waiting.
func TestComplete_waitsForNoAdvisoryLock(t *testing.T) {
	db := testdb.New(t)
	holder, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_lock(x'6c65'::int, hashint8(42))`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := New(db.Pinned).Complete(ctx, completion(42, 1)); err != nil {
		t.Error(err)
	}
	wantRows(t, db, 1)
}

// A repair reads the outbox by number, so numbers of one user must follow the order of the commits.
func TestComplete_letsLessonsOfOneUserPassOneAfterTheOther(t *testing.T) {
	db := testdb.New(t)
	overtake(t, db, db.Pinned, completion(42, 1), completion(42, 2), func(ctx context.Context) {
		// Someone else does not wait.
		if _, err := New(db.Pinned).Complete(ctx, completion(43, 1)); err != nil {
			t.Error(err)
		}
	})
	got := db.Texts(`SELECT aggregate_id FROM public.outbox WHERE partition_key = '42' ORDER BY id`)
	if want := []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("lessons by number of their event: %q, want %q", got, want)
	}
}

// A server default must not have the snapshot taken before the lock is held.
func TestComplete_copesWithRepeatableReadAsTheServersDefault(t *testing.T) {
	db := testdb.New(t)
	results := overtake(t, db, db.Open("default_transaction_isolation=repeatable%20read"), completion(42, 7), completion(42, 7), func(context.Context) {})
	if !results[1].AlreadyCompleted || results[1].EventID != results[0].EventID {
		t.Errorf("results are %+v, want the second to repeat the first", results)
	}
	wantRows(t, db, 1)
}

// F-18: whatever stops the event stops the completion.
func TestComplete_leavesNothingBehindWhenTheEventCannotBeWritten(t *testing.T) {
	const raise = `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;`
	tests := []struct{ name, fault, undo, code string }{
		{"at the insert", raise + `CREATE TRIGGER refuse BEFORE INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.refuse()`,
			`DROP TRIGGER refuse ON public.outbox`, "P0001"},
		{"at the commit", raise + `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON public.outbox
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.refuse()`,
			`DROP TRIGGER refuse ON public.outbox`, "P0001"},
		{"for want of the table", `ALTER TABLE public.outbox RENAME TO away`, `ALTER TABLE public.away RENAME TO outbox`, "42P01"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			s := New(db.Pinned)
			db.Exec(test.fault)
			_, err := s.Complete(t.Context(), completion(42, 7))
			if got := postgres.Code(err); got != test.code {
				t.Errorf("code is %q, want %q (error: %v)", got, test.code, err)
			}
			db.Exec(test.undo)
			wantRows(t, db, 0)

			if _, err := s.Complete(t.Context(), completion(42, 7)); err != nil {
				t.Errorf("the same completion afterwards: %v", err)
			}
			wantRows(t, db, 1)
		})
	}
}

// F-18: a trigger can have another row stored than the one that was sent, or none. Success means both rows.
func TestComplete_writesAnEventExactlyIfATriggerLetsProgressBeStored(t *testing.T) {
	tests := []struct {
		name, body string
		want       int64
	}{
		{"another event id", `NEW.event_id := 'other'; RETURN NEW;`, 1},
		{"another lesson", `NEW.lesson_id := NEW.lesson_id + 1000; RETURN NEW;`, 1},
		{"nothing", `RETURN NULL;`, 0},
	}
	for _, begun := range []bool{false, true} {
		for _, test := range tests {
			t.Run(fmt.Sprintf("%s, begun %t", test.name, begun), func(t *testing.T) {
				db := testdb.New(t)
				if begun {
					db.Exec(`INSERT INTO public.lesson_progress (user_id, lesson_id, track_slug, lesson_slug) VALUES (42, 7, 'old', 'old')`)
				}
				db.Exec(`CREATE FUNCTION public.alter() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + test.body + ` END $$;
					CREATE TRIGGER alter BEFORE INSERT OR UPDATE ON public.lesson_progress FOR EACH ROW EXECUTE FUNCTION public.alter()`)
				result, err := New(db.Pinned).Complete(t.Context(), completion(42, 7))
				if stored := err == nil && !result.AlreadyCompleted; stored != (test.want == 1) {
					t.Errorf("the result is %+v, %v", result, err)
				}
				wantRows(t, db, test.want)
			})
		}
	}
}

// F-18, with REVOKE: a role that may write progress but not the outbox.
func TestComplete_leavesNothingBehindWithoutThePrivilegeOnTheOutbox(t *testing.T) {
	db := testdb.New(t)
	// Roles belong to the whole server, other databases of tests included; a predefined one does no harm.
	db.Exec(`GRANT SELECT, INSERT, UPDATE ON public.lesson_progress TO pg_monitor; GRANT USAGE ON SCHEMA public TO pg_monitor`)
	_, err := New(db.Open("role=pg_monitor")).Complete(t.Context(), completion(42, 7))
	if got, want := postgres.Code(err), "42501"; got != want {
		t.Errorf("code is %q, want %q (error: %v)", got, want, err)
	}
	wantRows(t, db, 0)
}

func TestReads_areNewestFirstInUTCAndOfOneUserOnly(t *testing.T) {
	db := testdb.New(t)
	ctx := t.Context()
	db.Exec(`
		INSERT INTO public.lesson_progress VALUES
			(1, 10, 'go', 'a', true, '2026-01-01 12:00+02', 'e1'), (1, 11, 'go', 'b', true, '2026-01-02 12:00+02', 'e2'),
			(1, 12, 'go', 'c', false, NULL, NULL), (2, 10, 'go', 'a', true, '2026-01-03', 'e3');
		INSERT INTO public.user_achievements VALUES (1, 'old', '2026-01-01'), (1, 'new', '2026-01-02'), (2, 'other', '2026-01-03');
		INSERT INTO public.notifications VALUES
			('e1', 1, 'old', '2026-01-01', NULL), ('e2', 1, 'new', '2026-01-02', '2026-01-02 10:00+00'), ('e3', 2, 'other', '2026-01-03', NULL);
		INSERT INTO public.recommendations VALUES (1, 'old', 1, '2026-01-01'), (1, 'new', 2, '2026-01-02'), (2, 'other', 3, '2026-01-03')`)
	s := New(db.Pinned)

	lessons, err := s.Lessons(ctx, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(lessons)
	want := `[{"lesson_id":11,"track_slug":"go","lesson_slug":"b","completed_at":"2026-01-02T10:00:00Z","event_id":"e2"},` +
		`{"lesson_id":10,"track_slug":"go","lesson_slug":"a","completed_at":"2026-01-01T10:00:00Z","event_id":"e1"}]`
	if string(got) != want {
		t.Errorf("lessons are %s, want %s", got, want)
	}
	if lessons, err = s.Lessons(ctx, 1, 1); err != nil || len(lessons) != 1 || lessons[0].LessonID != 11 {
		t.Errorf("with a limit of 1: %+v, %v; want the newest one", lessons, err)
	}

	achievements, err := s.Achievements(ctx, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(achievements) != 2 || achievements[0].Slug != "new" {
		t.Errorf("achievements are %+v, want new, old", achievements)
	}
	notifications, err := s.Notifications(ctx, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(notifications) != 2 || notifications[0].EventID != "e2" || notifications[0].SentAt == nil || notifications[1].SentAt != nil {
		t.Errorf("notifications are %+v, want e2 (sent), e1 (not sent)", notifications)
	}
	recommendations, err := s.Recommendations(ctx, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(recommendations) != 2 || recommendations[0].TrackSlug != "new" || recommendations[0].Completed != 2 {
		t.Errorf("recommendations are %+v, want new (2), old", recommendations)
	}
	if none, err := s.Achievements(ctx, 99, 10); err != nil || none == nil || len(none) != 0 {
		t.Errorf("achievements of a stranger are %#v, %v; want an empty list", none, err)
	}
}
