package dispatch_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

func TestDispatcher_handsEventsToThoseWhoWantThem(t *testing.T) {
	r := newRig(t, func(source, eventType string) bool { return source == "lessons" && eventType == "lesson.completed" })
	r.receive(
		begin(8, 501), outboxRelation(), row("a"), rowOf("b", "lesson.started", "NULL"),
		message(true, "walpost", `{"id": "c", "type": "lesson.completed", "key": "k"}`), row("d"), commit(8, 16),
	)
	if got, want := r.everything.at(), []string{"a@0", "b@1", "c@2", "d@3"}; !slices.Equal(got, want) {
		t.Errorf("who wants everything got %v, want %v", got, want)
	}
	if got, want := r.some.at(), []string{"a@0", "d@3"}; !slices.Equal(got, want) {
		t.Errorf("who wants one type of one source got %v, want %v", got, want)
	}
	got := r.everything.deliveries[0].Event
	if got != r.some.deliveries[0].Event {
		t.Error("an event was copied for each subscriber")
	}
	if got.Source != "lessons" || got.Key != "key of a" || got.Row != "1a" || string(got.Payload) != `{"id": "a"}` ||
		got.XID != 501 || !got.CommittedAt.Equal(commitTime) || got.Position != (event.Position{Epoch: epoch, Commit: 8}) {
		t.Errorf("event a: got %+v", got)
	}
	if got := r.everything.deliveries[2].Event; got.Source != "emitted" || got.Row != "" || got.Key != "k" {
		t.Errorf("event c: got %+v", got)
	}
	if got := r.finish(); got != 16 {
		t.Errorf("confirmed %v when all was finished, want 16", got)
	}
}

// What a filter leaves out still counts, so that a position means the same after the filter changed.
func TestDispatcher_ordinalsCountWhatNoOneWants(t *testing.T) {
	frames := [][]byte{
		begin(8, 501), outboxRelation(),
		rowOf("a", "unwanted", "NULL"),
		rowOf("b", "wanted", "2026-07-01 12:00:00+00"), // published already
		message(true, "someone else's", "x"),
		message(false, "walpost", "x"), // not of this transaction
		rowOf("c", "wanted", "NULL"),
		rowOf("", "wanted", "NULL"), // no valid event
		rowOf("d", "wanted", "NULL"),
		commit(8, 16),
	}
	r := newRig(t, func(_, eventType string) bool { return eventType == "wanted" })
	r.receive(frames...)
	if got, want := r.some.at(), []string{"c@3", "row:1@4", "d@5"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := r.some.deliveries[1].Event.Invalid; got != "event id is empty" {
		t.Errorf("invalid: got %q", got)
	}
}

func TestDispatcher_anInsertThatIsPublishedIsNoEvent(t *testing.T) {
	r := newRig(t, nothing)
	r.receive(
		begin(8, 501), outboxRelation(), rowOf("a", "x", "2026-07-01 12:00:00+00"), commit(8, 16),
		begin(24, 502), row("b"), commit(24, 32),
	)
	if got, want := r.everything.at(), []string{"b@0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := r.metric("walpost_undelivered_total", "lessons", "published_before"); got != 1 {
		t.Errorf("counted %v, want 1", got)
	}
	if got := r.finish(); got != 32 {
		t.Errorf("confirmed %v, want 32", got)
	}
}

// S-171
func TestDispatcher_tellsOfEachTypeOnce(t *testing.T) {
	r := newRig(t, nothing)
	r.Dispatcher = dispatch.New(r.tables, nil, []dispatch.Route{{Lane: &r.some, Wants: func(_, eventType string) bool { return eventType != "forgotten" }}},
		r.tracker, epoch, 1<<20, dispatch.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	var told []string
	r.OnType(func(source, eventType string, takers int) {
		told = append(told, fmt.Sprintf("%s/%s/%d", source, eventType, takers))
	})
	r.receive(
		begin(8, 501), outboxRelation(), rowOf("a", "forgotten", "NULL"), rowOf("b", "taken", "NULL"), rowOf("c", "forgotten", "NULL"), commit(8, 16),
	)
	if got, want := strings.Join(told, " "), "lessons/forgotten/0 lessons/taken/1"; got != want {
		t.Errorf("told of %q, want %q", got, want)
	}
}

// They come before their transaction, and from one that is rolled back too.
func TestDispatcher_aMessageThatIsNotTransactionalIsNoEvent(t *testing.T) {
	const content = `{"id": "m", "type": "x"}`
	r := newRig(t, nothing)
	r.receive(
		message(false, "walpost", content),
		begin(8, 501), message(false, "walpost", content), message(true, "walpost", content),
		message(true, "another", content), commit(8, 16),
		message(false, "walpost", content),
	)
	if got, want := r.everything.at(), []string{"m@0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := r.metric("walpost_ignored_messages_total"); got != 4 {
		t.Errorf("counted %v, want 4", got)
	}
}

func TestDispatcher_aRowOfATableThatNoSourceNamesStopsTheStream(t *testing.T) {
	r := newRig(t, nothing)
	r.receive(begin(8, 501), relation(9, `public.outbox"2`, "id"), outboxRelation(), row("a"))
	err := r.Receive(insert(9, "1"))
	if err == nil || !strings.Contains(err.Error(), `"public"."outbox""2"`) {
		t.Errorf("got %v, want an error that names the table", err)
	}
}

func TestDispatcher_whatItCannotUnderstandStopsTheStream(t *testing.T) {
	for _, test := range []struct {
		name   string
		frames [][]byte
		want   string
	}{
		{"an unknown message", [][]byte{[]byte("S")}, `'S'`},
		{"a row before its relation", [][]byte{begin(8, 501), row("a")}, "not described"},
		{"a commit of nothing", [][]byte{commit(8, 16)}, "0/8"},
		{"a commit of another transaction", [][]byte{begin(8, 501), commit(16, 24)}, "commit 0/10 does not end transaction 0/8"},
		{"a table without an id", [][]byte{begin(8, 501), relation(7, "public.outbox", "id_", "event_type", "payload")}, "columns.id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, nothing)
			last := len(test.frames) - 1
			r.receive(test.frames[:last]...)
			if err := r.Receive(test.frames[last]); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestDispatcher_findsColumnsByNameAfterTheTableWasAltered(t *testing.T) { // F-40
	r := newRig(t, nothing)
	r.receive(
		begin(8, 501), outboxRelation(), row("a"), commit(8, 16),
		begin(24, 502), relation(7, "public.outbox", "payload", "note", "published_at", "event_type", "event_id", "id"),
		insert(7, "{}", "n", "NULL", "x", "b", "12"), commit(24, 32),
	)
	if got, want := r.everything.ids(), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if got := r.everything.deliveries[1].Event; got.Row != "12" || string(got.Payload) != "{}" || got.Type != "x" {
		t.Errorf("event b: got %+v", got)
	}
}

func TestDispatcher_aKeepaliveCountsOnlyBetweenTransactions(t *testing.T) { // F-01
	r := newRig(t, nothing)
	r.KeepAlive(8)
	if got := r.finish(); got != 8 {
		t.Errorf("nothing open: confirmed %v, want 8", got)
	}
	r.receive(begin(16, 501), outboxRelation(), row("a"))
	r.KeepAlive(100)
	if got := r.finish(); got != 8 {
		t.Errorf("inside a transaction: confirmed %v, want 8", got)
	}
	r.receive(row("b"), commit(16, 24))
	r.KeepAlive(200)
	if got := r.tracker.TakeSettled().Finished; got != 8 {
		t.Errorf("with an open event before it: %v may be confirmed, want 8", got)
	}
	if got := r.finish(); got != 200 {
		t.Errorf("when that was finished: confirmed %v, want 200", got)
	}
}

// Types come from data, so what is known about them must not grow with it.
func TestDispatcher_remembersWhoWantsAboutAThousandTypes(t *testing.T) { // F-64
	asked := make(map[string]int)
	r := newRig(t, func(_, eventType string) bool {
		asked[eventType]++
		return eventType == "type 0"
	})
	r.receive(begin(8, 501), outboxRelation())
	for i := range 500 {
		r.receive(rowOf(fmt.Sprint("a", i), fmt.Sprint("type ", i%10), "NULL"))
	}
	for eventType, n := range asked {
		if n != 1 {
			t.Errorf("%s: asked %d times, want once", eventType, n)
		}
	}
	for i := range 5000 {
		r.receive(rowOf(fmt.Sprint("b", i), fmt.Sprint("other ", i), "NULL"))
	}
	r.receive(rowOf("last", "type 0", "NULL"))
	if got := asked["type 0"]; got != 2 {
		t.Errorf("asked %d times about a type before and after 5000 others, want twice: it was to be forgotten", got)
	}
	if got := r.some.ids(); got[len(got)-1] != "last" {
		t.Errorf("the last event wanted: got %q", got[len(got)-1])
	}
}

// named is a source of one of the tables in pgoutput's golden files; typ is the column taken for the type.
func named(table, typ, payload string) *outbox.Table {
	return &outbox.Table{Source: &outbox.Source{
		Name: table, Schema: "public", Table: table,
		Columns: outbox.Columns{ID: "id", Type: typ, Payload: payload},
	}, Key: []string{"id"}}
}

// Rows of two tables in one transaction, rows without an id, a table that is described again, and updates,
// deletes and truncates of a publication that someone else made.
func TestDispatcher_takesWhatARealServerSent(t *testing.T) { // F-54
	for _, test := range []struct {
		scenario string
		tables   []*outbox.Table
		want     []string
	}{
		{"rows", []*outbox.Table{named("a", "n", "body"), named("b", "body", "body")},
			[]string{"1@0", "2@1", "3@2", "4@3", "5@4", "row:…@0", "6@1", "8@0"}},
		// Relations of partitions precede rows of their root, with columns in another order. F-13
		{"partitions", []*outbox.Table{named("a", "month", "month")}, []string{"10@0", "20@1", "10@0"}},
		{"changes", []*outbox.Table{named("a", "id", "body"), named("whole", "id", "body")}, []string{"1@0", "1@0", "3@0"}},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			r := newRigFor(t, nothing, test.tables...)
			r.receive(recorded(t, test.scenario)...)
			got := r.everything.at()
			for i, at := range got {
				if id, ordinal, _ := strings.Cut(at, "@"); strings.HasPrefix(id, "row:") { // made from the row
					got[i] = "row:…@" + ordinal
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
