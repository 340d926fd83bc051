package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-11, F-26: sub-transactions that are rolled back inside transactions which the server spills to disk, which
// a metric shows.
func TestRelay_takesOfATransactionWhatWasCommittedAndNothingElse(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"logical_decoding_work_mem": "64kB"}))
	const insertSome = `INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT '%[1]s-' || n, 'lesson.completed', 'a', jsonb_build_object('text', repeat('x', 200)) FROM generate_series(0, %[2]d - 1) n`
	for _, test := range []struct {
		name string
		sql  []string
		want []string
	}{
		{"a savepoint", []string{
			`BEGIN`, fmt.Sprintf(insertSome, "good", 500), `SAVEPOINT s`, fmt.Sprintf(insertSome, "bad", 500), `ROLLBACK TO s`,
			fmt.Sprintf(insertSome, "late", 5), `COMMIT`}, append(numbered("good", 500), numbered("late", 5)...)},
		{"nested blocks that catch their errors", []string{`
			DO $$ BEGIN
				` + fmt.Sprintf(insertSome, "outer", 300) + `;
				BEGIN
					` + fmt.Sprintf(insertSome, "bad", 300) + `;
					BEGIN
						` + fmt.Sprintf(insertSome, "worse", 300) + `;
						PERFORM 1 / 0;
					EXCEPTION WHEN division_by_zero THEN
						` + fmt.Sprintf(insertSome, "caught", 300) + `;
						PERFORM 'x'::int;
					END;
				EXCEPTION WHEN invalid_text_representation THEN
					` + fmt.Sprintf(insertSome, "kept", 300) + `;
				END;
			END $$`}, append(numbered("outer", 300), numbered("kept", 300)...)},
		{"a rollback", []string{`BEGIN`, fmt.Sprintf(insertSome, "bad", 1000), `ROLLBACK`}, nil},
		{"a rollback of everything but the end", []string{
			`BEGIN`, `SAVEPOINT s`, fmt.Sprintf(insertSome, "bad", 500), `ROLLBACK TO s`, `RELEASE s`, fmt.Sprintf(insertSome, "last", 1), `COMMIT`},
			numbered("last", 1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			db.Exec(`TRUNCATE outbox`)
			sub := newChanging("sub", taking)
			r := streaming(t, options(t, db, sub))
			conn := session(t, db.DSN)
			for _, sql := range test.sql {
				mustExec(t, conn, sql)
			}
			insert(db, "end", "a")
			sub.await(t, "end")
			if got, want := ids(sub.Calls()), append(test.want, "end"); !slices.Equal(got, want) {
				t.Errorf("%d events were handed over, want %d; got %.300v", len(got), len(want), got)
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
		})
	}
	o := options(t, db, subscribertest.Recording())
	streaming(t, o)
	eventually(t, "a metric of what was spilled", func() bool { return metric(t, o, "walpost_slot_spilled_bytes", "") > 0 })
	if got := db.Int(`SELECT coalesce(sum(spill_txns), 0) FROM pg_stat_replication_slots`); got == 0 {
		t.Error("the server has spilled nothing, so nothing was tested")
	}
}

// F-38: a transaction much larger than the window passes through it in order; the position moves when all
// of it is done.
func TestRelay_passesAHugeTransactionThroughASmallWindow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const events, window = 10_000, 256 << 10
	sub, gone := newTally("sub", taking), newTally("gone", away)
	o := options(t, db, sub, gone)
	o.Window.Bytes = window
	r := streaming(t, o)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', 'k' || n % 20, jsonb_build_object('text', repeat('x', 1000)) FROM generate_series(1, $1::int) n`, events)
	end := db.Text(`SELECT pg_current_wal_insert_lsn()::text`)
	var most int64
	eventually(t, "all are taken", func() bool {
		most = max(most, r.Progress().OpenBytes)
		return sub.count() >= events
	})
	if limit := int64(window + 2000); most > limit || most == 0 {
		t.Errorf("up to %d bytes of events were open, want at most %d", most, limit)
	}
	sub.await(t, events)
	eventually(t, "all of the other one's is owed", func() bool { return owed(db, "gone", "waiting") == events })
	if confirmedPast(db, end)() {
		t.Error("the slot has passed the transaction although the budget holds it for the debt")
	}
}

// Events of 1, 20 and 100 MB between small ones: what is too large is dead by reference, for everyone who
// wants it, and nothing of it is kept.
func TestRelay_passesLargeEventsByReference(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sizes := func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "large-1" && len(d.Payload) < 1<<20 {
			return fmt.Errorf("only %d bytes", len(d.Payload))
		}
		return nil
	}
	first, second := newChanging("first", sizes), newChanging("second", sizes)
	o := options(t, db, first, second)
	r := streaming(t, o)
	var most int64
	want := []string{"small-0"}
	insert(db, "small-0", "a")
	for i, megabytes := range []int{1, 20, 100} {
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
			VALUES ($1, 'lesson.completed', 'a', jsonb_build_object('text', repeat('x', $2::int)))`, fmt.Sprint("large-", megabytes), megabytes<<20)
		small := fmt.Sprint("small-", i+1)
		insert(db, small, "a")
		if megabytes == 1 {
			want = append(want, "large-1")
		}
		want = append(want, small)
	}
	eventually(t, "the last small one", func() bool {
		most = max(most, r.Progress().OpenBytes)
		return len(first.Delivered()) == len(want) && len(second.Delivered()) == len(want)
	})
	for _, sub := range []*changing{first, second} {
		if got := ids(sub.Calls()); !slices.Equal(got, want) {
			t.Errorf("%s got %v, want %v", sub.Name(), got, want)
		}
	}
	if most > 2<<20 {
		t.Errorf("up to %d bytes of events were open, want no more than the one of a megabyte", most)
	}
	if got, want := dead(db), []string{"first/large-100", "first/large-20", "second/large-100", "second/large-20"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	if got := db.Int(`SELECT count(*) FROM walpost.owed WHERE copied OR payload IS NOT NULL`); got != 0 {
		t.Errorf("%d dead letters keep a copy", got)
	}
	for _, reason := range db.Texts(`SELECT error FROM walpost.owed`) {
		if !strings.Contains(reason, "max_event is 16777216") {
			t.Errorf("reason %q does not say the limit", reason)
		}
	}
	eventually(t, "the slot has passed all", passed(t, db, first.await(t, "small-3")))
}

// S-110: an event over max_event is known by what its whole row holds, also where the table has no time: its row is marked
// when a person has discarded it.
func TestRelay_marksTheRowOfALargeEventThatWasDiscarded(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]outbox.Source{
		"without a time":        {Columns: outbox.Columns{ID: "nr", Type: "type"}},
		"an id in the payload":  {Columns: outbox.Columns{ID: "payload.id", Type: "payload.type", Time: "payload.at"}},
		"a type in the payload": {Columns: outbox.Columns{ID: "nr", Type: "payload.type"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE large (nr bigserial PRIMARY KEY, type text DEFAULT 'any', payload jsonb, published_at timestamptz)`)
			source := source
			source.Name, source.Schema, source.Table, source.Mark = "large", "public", "large", true
			o := oneSource(options(t, db, keeping(nil)), &source)
			o.MaxEvent = 100_000
			streaming(t, o)
			db.Exec(`INSERT INTO large (payload) SELECT jsonb_build_object('a', repeat('x', 200000), 'id', 'e-1', 'type', 'big', 'at', '2026-01-02T03:04:05Z')`)
			eventually(t, "the dead letter", func() bool { return owed(db, "sub", "dead") == 1 })
			if outcome, err := book(db).Discard(t.Context(), debt.Filter{Source: "large"}, "test", "settled by hand"); outcome.Deliveries != 1 || err != nil {
				t.Fatalf("discarded %+v, %v", outcome, err)
			}
			eventually(t, "the mark", func() bool { return db.Int(`SELECT count(*) FROM large WHERE published_at IS NULL`) == 0 })
		})
	}
}
