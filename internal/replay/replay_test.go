package replay_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/replay"
	recorded "github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

// storeOn is a store of two tables and a source of messages, with a subscriber "sub" and one that has left.
func storeOn(t *testing.T, db *testdb.DB) *replay.Store {
	t.Helper()
	db.Exec(`CREATE TABLE facts (id int PRIMARY KEY, type text, payload text, created_at timestamptz)`)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state, confirmed) VALUES ('s', '7', 1, 'ready', '0/1000')`)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name, gone_at) VALUES ('s', 'sub', NULL), ('s', 'left', now())`)
	var tables []*outbox.Table
	for _, source := range []*outbox.Source{
		{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true, Retention: 90 * time.Minute},
		{Name: "facts", Schema: "public", Table: "facts"},
	} {
		table, err := source.Inspect(t.Context(), db.Pinned)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	return replay.NewStore(db.Pinned, "s", tables, []string{"signals"})
}

func TestEstimate_tellsWhatWouldBeSentAndWhatCannot(t *testing.T) {
	db := testdb.New(t)
	store := storeOn(t, db)
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload, created_at)
		SELECT 'e' || n, CASE WHEN n < 9 THEN 'a' ELSE 'b' END, '{}', '2026-01-01Z'::timestamptz + n * interval '1 hour' FROM generate_series(1, 10) n`)
	written := `to_char('2026-01-01'::timestamp + n * interval '1 hour', 'YYYY-MM-DD HH24:MI:SS"+00"')`
	db.Exec(`INSERT INTO facts VALUES (1, 'a', '', NULL), (2, 'a', '', '2026-01-03Z')`)
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence)
		SELECT 's', subscriber, 'lessons', 'e' || n, ` + written + ` FROM (VALUES ('sub', 1), ('sub', 2), ('sub', 9), ('other', 3)) i(subscriber, n)`)
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key)
		SELECT 's', 'sub', 'lessons', 'e' || n, ` + written + `, state, 1, '0/1', n, '', '' FROM (VALUES (2, 'dead'), (4, 'waiting'), (5, 'paid')) o(n, state)`)
	takes := func(_, eventType string) bool { return eventType == "a" }

	got, err := store.Estimate(t.Context(), replay.Request{Subscriber: "sub", Since: time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC)}, takes)
	if err != nil {
		t.Fatal(err)
	}
	lessons := replay.SourceEstimate{Source: "lessons", Rows: 10, Owed: 2, Unwanted: 2, InInbox: 1, From: time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)}
	facts := replay.SourceEstimate{Source: "facts", Rows: 1, From: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)}
	if !slices.Equal(got.Sources, []replay.SourceEstimate{lessons, facts}) || got.Rows != 11 || got.Sent != 7 {
		t.Errorf("got %+v, want %+v and %+v", got, lessons, facts)
	}
	want := []string{
		"Source lessons has rows from 2026-01-01T01:00:00Z on: retention deletes what was published 1h30m0s ago; what was before cannot be sent again.",
		"Source facts has rows from 2026-01-03T00:00:00Z on: what was before is not in the table any more, or never was.",
		"Source facts has 1 row without a time, which no choice by time finds.",
		"Source signals has no table, so nothing of it can be sent again.",
	}
	if !slices.Equal(got.Notes, want) {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(got.Notes, "\n"), strings.Join(want, "\n"))
	}
	got, err = store.Estimate(t.Context(), replay.Request{Subscriber: "sub", Source: "facts"}, nil)
	if err != nil || got.Rows != 2 || got.Notes != nil {
		t.Errorf("without a time: got %+v, %v; want 2 rows and nothing to say", got, err)
	}
}

func TestAsk_refusesWhatCannotBeMeant(t *testing.T) {
	db := testdb.New(t)
	store := storeOn(t, db)
	now := time.Now()
	for _, test := range []struct {
		request replay.Request
		want    string
	}{
		{replay.Request{}, "name the subscriber"},
		{replay.Request{Subscriber: "sub"}, "at least one of"},
		{replay.Request{Subscriber: "sub", Since: now, Until: now}, "until must be after since"},
		{replay.Request{Subscriber: "sub", Key: "k", Rate: -1}, "must not be negative"},
		{replay.Request{Subscriber: "left", Key: "k"}, "has left the configuration"},
		{replay.Request{Subscriber: "sub", Source: "nosuch"}, `no source "nosuch"`},
		{replay.Request{Subscriber: "sub", Source: "signals"}, "has no table"},
	} {
		_, err := store.Create(t.Context(), test.request, 0, "ada", "why")
		var refused debt.Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want it refused with %q", test.request, err, test.want)
		}
		if _, err := store.Estimate(t.Context(), test.request, nil); !errors.As(err, &refused) {
			t.Errorf("%+v: estimated with %v, want it refused", test.request, err)
		}
	}
	if _, err := store.Create(t.Context(), replay.Request{Subscriber: "missing", Key: "k"}, 0, "ada", "why"); !errors.Is(err, recorded.ErrNoSubscriber) {
		t.Errorf("got %v, want ErrNoSubscriber", err)
	}
	if n := db.Int(`SELECT (SELECT count(*) FROM walpost.replays) + (SELECT count(*) FROM walpost.audit)`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestSave_isPartOfTheLeadershipAndLearnsOfACancel(t *testing.T) {
	db := testdb.New(t)
	replays := storeOn(t, db)
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('e1', 'a', '{}')`)
	fence := recorded.NewFence("s")
	if err := fence.Lead(t.Context(), db.Pinned, "first", 0, false); err != nil {
		t.Fatal(err)
	}
	asked, err := replays.Create(t.Context(), replay.Request{Subscriber: "sub", Source: "lessons", Until: time.Now().Add(time.Hour), Again: true, Rate: 7}, 1, "ada", "why")
	if err != nil {
		t.Fatal(err)
	}
	table := "lessons"
	text := "1"
	asked.State, asked.Delivered, asked.AtSource, asked.At = replay.Running, 1, table, outbox.Place{&text}
	asked.Name("row:1", "its id is empty")
	if err := replays.Save(t.Context(), fence, &asked); err != nil {
		t.Fatal(err)
	}
	open, err := replays.Open(t.Context())
	if err != nil || len(open) != 1 {
		t.Fatalf("open are %+v, %v", open, err)
	}
	if got := open[0]; got.Request != asked.Request || got.Delivered != 1 || got.Named[0] != "row:1: its id is empty" ||
		*got.At[0] != "1" || got.AtSource != table || got.Last("lessons") == nil || got.Last("facts") != nil {
		t.Errorf("got %+v, want %+v", got, asked)
	}
	if err := recorded.NewFence("s").Lead(t.Context(), db.Pinned, "second", 0, false); err != nil {
		t.Fatal(err)
	}
	if err := replays.Save(t.Context(), fence, &asked); !errors.Is(err, recorded.ErrFenced) {
		t.Errorf("saved under an old leadership: %v", err)
	}
	if err := fence.Lead(t.Context(), db.Pinned, "first", 0, false); err != nil {
		t.Fatal(err)
	}
	if err := replays.CancelAll(t.Context(), "sub"); err != nil {
		t.Fatal(err)
	}
	asked.Delivered = 5
	if err := replays.Save(t.Context(), fence, &asked); !errors.Is(err, replay.ErrOver) {
		t.Errorf("saved a cancelled one: %v, want ErrOver", err)
	}
	if got, err := replays.Get(t.Context(), asked.ID); err != nil || got.State != replay.Cancelled || got.Delivered != 5 {
		t.Errorf("got %+v, %v; want it cancelled with what was sent", got, err)
	}
}
