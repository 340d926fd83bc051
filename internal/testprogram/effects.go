package testprogram

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/testdb"
)

// differences are queries that count what must not be there: each compares what was completed with what
// a subscriber, or the relay, made of it.
var differences = []struct{ what, sql string }{
	{"completions without their event, or events without a completion", `
		SELECT count(*) FROM lesson_progress p FULL JOIN outbox o ON o.event_id = p.event_id
		WHERE p.event_id IS NULL OR o.event_id IS NULL`},
	{"events without their analytics row, or the reverse", `
		SELECT count(*) FROM outbox o FULL JOIN analytics_events a ON a.event_id = o.event_id
		WHERE a.event_id IS NULL OR o.event_id IS NULL`},
	{"events without their notification, or the reverse", `
		SELECT count(*) FROM outbox o FULL JOIN notifications n ON n.event_id = o.event_id
		WHERE n.event_id IS NULL OR o.event_id IS NULL`},
	{"tracks of a learner with a wrong count in recommendations", `
		SELECT count(*) FROM (SELECT user_id, track_slug, count(*) AS completed FROM lesson_progress GROUP BY 1, 2) p
		FULL JOIN recommendations r ON (r.user_id, r.track_slug) = (p.user_id, p.track_slug)
		WHERE r.completed IS DISTINCT FROM p.completed`},
	{"achievements that were earned and not granted, or the reverse", `
		WITH progress AS (SELECT user_id, track_slug, count(*) AS completed FROM lesson_progress GROUP BY 1, 2),
		earned AS (
			SELECT user_id, 'first_lesson' AS slug FROM progress WHERE completed >= 1
			UNION SELECT user_id, 'five_lessons' FROM progress WHERE completed >= 5
			UNION SELECT user_id, 'track_' || track_slug || '_master' FROM progress WHERE completed >= 10)
		SELECT count(*) FROM earned e
		FULL JOIN user_achievements a ON (a.user_id, a.achievement_slug) = (e.user_id, e.slug)
		WHERE a.user_id IS NULL OR e.user_id IS NULL`},
	{"events without their record in the inbox of recommendations", `
		SELECT count(*) FROM outbox o WHERE NOT EXISTS (
			SELECT FROM walpost.inbox i WHERE i.event_id = o.event_id AND i.subscriber = 'recommendations')`},
	{"rows that are not marked as published", `SELECT count(*) FROM outbox WHERE published_at IS NULL`},
	{"deliveries still owed, dead ones included", `SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`},
}

// AwaitEffects waits until the four subscribers have made of every completion what they have to, exactly
// once, and every row is published. It fails the test with what differs when that takes over a minute.
func AwaitEffects(t testing.TB, db *testdb.DB) {
	t.Helper()
	AwaitPublished(t, db, patience)
	for _, difference := range differences {
		if got := db.Int(difference.sql); got != 0 {
			t.Errorf("%d %s", got, difference.what)
		}
	}
	if got := db.Int(`SELECT count(*) FROM outbox`); got == 0 {
		t.Error("nothing was completed, so nothing was tested")
	}
}

// AwaitPublished waits until every row is marked as published, which it is when every subscriber has it.
func AwaitPublished(t testing.TB, db *testdb.DB, patience time.Duration) {
	t.Helper()
	Within(t, patience, "every row to be published", func() bool {
		return db.Int(`SELECT count(*) FROM (SELECT FROM outbox WHERE published_at IS NULL LIMIT 1) o`) == 0
	})
}

// AwaitIdle waits until the relay with this ops server has read everything that is written by now, and
// holds none of it. Rows can be published before that: by a relay that was killed over its confirm.
func AwaitIdle(t testing.TB, db *testdb.DB, ops string) {
	t.Helper()
	end, err := event.ParseLSN(db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the relay to have read everything and to hold nothing", func() bool {
		progress := progressOf(t, ops)
		received, err := event.ParseLSN(progress.ReceivedLSN)
		if err != nil {
			t.Fatal(err)
		}
		return received >= end && progress.OpenEvents == 0 &&
			!slices.ContainsFunc(progress.Subscribers, func(s holder) bool { return s.HoldingWALBytes > 0 })
	})
}

// progress is what this package needs of /progress.
type progress struct {
	ReceivedLSN string   `json:"received_lsn"`
	OpenEvents  int      `json:"open_events"`
	Subscribers []holder `json:"subscribers"`
}

type holder struct {
	HoldingWALBytes int64 `json:"holding_wal_bytes"`
}

func progressOf(t testing.TB, ops string) (p progress) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ops+"/progress", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&p); err != nil {
		t.Fatalf("progress of the relay, %s: %v", response.Status, err)
	}
	return p
}

// StillToCome counts the rows that the server would send to the next relay. The slot has the database's
// name, and is waited for until no one reads it.
func StillToCome(t testing.TB, db *testdb.DB) int64 {
	t.Helper()
	Eventually(t, "the slot to be free", func() bool {
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, db.Name) == 1
	})
	// 73 is 'I', the tag of an Insert. (PostgreSQL manual, "Logical Replication Message Formats")
	return db.Int(`SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'walpost') WHERE get_byte(data, 0) = 73`, db.Name)
}
