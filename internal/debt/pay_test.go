package debt_test

import (
	"context"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func marked(db *testdb.DB) string {
	return strings.Join(db.Texts(`SELECT event_id || ':' || attempts FROM outbox WHERE published_at IS NOT NULL ORDER BY id`), " ")
}

// markRows marks what a leader may mark whose stream has brought everything, and has nothing open but these.
func markRows(t testing.TB, store *debt.Store, open ...*event.Event) debt.MarkRound {
	t.Helper()
	return markPassed(t, store, 1<<40, open...)
}

func markPassed(t testing.TB, store *debt.Store, passed event.LSN, open ...*event.Event) debt.MarkRound {
	t.Helper()
	isOpen := make(map[event.Identity]bool)
	for _, e := range open {
		isOpen[e.Identity()] = true
	}
	var all debt.MarkRound
	for {
		round, err := store.MarkRows(t.Context(), debt.MarkQuery{
			Passed: event.Position{Epoch: 1, Commit: passed}, After: all.Next, Limit: 1000,
			Open: func([]event.Identity) map[event.Identity]bool { return isOpen },
		})
		if err != nil {
			t.Fatal(err)
		}
		all.Done += round.Done
		all.Left += round.Left
		all.Locked = append(all.Locked, round.Locked...)
		if all.Next = round.Next; all.Next == nil {
			return all
		}
	}
}

func TestMarkRows_marksWhatIsPaidAndOwedToNoOneElse(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	record(t, store, "a", events...)
	record(t, store, "b", events[1])
	if _, err := store.Dead(t.Context(), "b", lane.Owed{Event: events[2]}); err != nil {
		t.Fatal(err)
	}
	pay(t, store, "a", 100, lane.Paid{Event: events[0], Attempts: 3}, lane.Paid{Event: events[1]}, lane.Paid{Event: events[2]})
	want(t, "by the payment", marked(db), "")
	markRows(t, store)
	want(t, "while b is owed two", marked(db), "e1:3")
	pay(t, store, "b", 100, lane.Paid{Event: events[1], Attempts: 2})
	markRows(t, store)
	want(t, "while b has a dead letter", marked(db), "e1:3 e2:2")
}

func TestPaid_leavesNothingToMarkWhereNoOneWantsIt(t *testing.T) {
	db := testdb.New(t)
	unmarked := lessons()
	unmarked.Mark = false
	store, events := open(t, db, unmarked), fill(t, db, 1)
	record(t, store, "sub", events...)
	pay(t, store, "sub", 100, lane.Paid{Event: events[0]})
	want(t, "owed", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
	// Nor where the relay marked once, and does not any more.
	store.Use(nil)
	record(t, store, "sub", events...)
	pay(t, store, "sub", 100, lane.Paid{Event: events[0]})
	markRows(t, open(t, db, unmarked))
	want(t, "marked", marked(db), "")
	want(t, "to be marked", db.Int(`SELECT count(*) FROM walpost.owed WHERE mark`), 0)
}

// Each of several transactions that pay the last deliveries of an event at the same time sees the others' as
// still owed. The mark is set all the same, and once.
func TestMarkRows_marksWhatSeveralHavePaidAtOnce(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	subscribe(db, "a", "b", "c")
	events := fill(t, db, 40)
	for _, e := range events {
		var payers sync.WaitGroup
		start := make(chan struct{})
		for _, subscriber := range []string{"a", "b", "c"} {
			record(t, store, subscriber, e)
			payers.Go(func() {
				<-start
				if err := store.Paid(t.Context(), subscriber, []lane.Paid{{Event: e, Attempts: 1}}, events[39].Position); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		payers.Wait()
	}
	markRows(t, store)
	want(t, "unmarked rows", db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`), 0)
	want(t, "attempts", db.Int(`SELECT sum(attempts) FROM outbox`), 120)
	want(t, "left", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
}

// S-21: paid is not yet finished by all.
func TestMarkRows_waitsForTheStreamAndForWhatIsOpen(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	stand(db, 0)
	madeUp, earlier := *events[1], *events[2]
	madeUp.Position, madeUp.Bound = event.Position{Epoch: 1, Commit: 7, Ordinal: 1}, 0x1000 // it committed before that, no one knows where
	earlier.Position = event.Position{Epoch: 0, Commit: 0x7777_0000}
	record(t, store, "a", events[0], &madeUp, &earlier)
	pay(t, store, "a", 100, lane.Paid{Event: events[0], Attempts: 3}, lane.Paid{Event: &madeUp}, lane.Paid{Event: &earlier})
	markPassed(t, store, 0)
	want(t, "what is of another server is passed", marked(db), "e3:0")
	markPassed(t, store, events[0].Position.Commit)
	want(t, "a stream that has sent everything before the commit", marked(db), "e3:0")
	if round := markPassed(t, store, events[0].Position.Commit+8, events[0]); round.Left != 1 {
		t.Errorf("got %+v, want the one that is open left", round)
	}
	want(t, "while it is open for another subscriber", marked(db), "e3:0")
	markPassed(t, store, 0x1000)
	want(t, "when it is not any more", marked(db), "e1:3 e3:0")
	record(t, store, "b", &madeUp) // b could not be served either
	markPassed(t, store, 0x1001)
	want(t, "while the second is owed to b", marked(db), "e1:3 e3:0")
	pay(t, store, "b", 100, lane.Paid{Event: &madeUp})
	markPassed(t, store, 0x1000)
	want(t, "while the stream is not past it", marked(db), "e1:3 e3:0")
	markPassed(t, store, 0x1001)
	want(t, "when it is", marked(db), "e1:3 e2:0 e3:0")
}

// S-21: a debtor holds the recorded position back, and anyone with rights can write it: what it says is no proof.
func TestMarkRows_takesNoRecordedPositionForAProof(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 2)
	stand(db, 1<<40)
	madeUp := *events[1]
	madeUp.Position, madeUp.Bound = event.Position{Epoch: 1, Commit: 7}, 0x1000
	record(t, store, "a", events[0], &madeUp)
	pay(t, store, "a", 1<<40, lane.Paid{Event: events[0]}, lane.Paid{Event: &madeUp})
	markPassed(t, store, 0)
	want(t, "with a recorded position beyond everything", marked(db), "")
	want(t, "kept for the mark", db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'paid' AND mark`), 2)
	if _, err := store.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "kept by the cleaning", db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'paid' AND mark`), 2)
	stand(db, 0)
	markPassed(t, store, 1<<30)
	want(t, "when the stream has passed both, whatever is recorded", marked(db), "e1:0 e2:0")
}

// S-25: the others are marked.
func TestMarkRows_leavesARowThatIsLockedAndGoesOnWithTheOthers(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error { return store.MarkLater(t.Context(), tx, owed(events)) })
	if err != nil {
		t.Fatal(err)
	}
	locker, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), `SELECT FROM outbox WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	round := markRows(t, store)
	if locked := (debt.LockedRow{Source: "lessons", Row: "2", EventID: "e2"}); round.Left != 1 || !slices.Equal(round.Locked, []debt.LockedRow{locked}) {
		t.Errorf("got %+v, want %v left", round, locked)
	}
	want(t, "marked", marked(db), "e1:0 e3:0")
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	markRows(t, store)
	want(t, "marked", marked(db), "e1:0 e2:0 e3:0")
	want(t, "left", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
}

func TestMarkRows_waitsForARowThatIsNotVisibleYet(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	writer, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var xid uint32
	if err := writer.QueryRow(t.Context(), `SELECT pg_current_xact_id()::xid`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(t.Context(), `INSERT INTO public.outbox (id, event_id, event_type, payload, created_at) VALUES (1, 'e1', 't', '{}', $1)`, written); err != nil {
		t.Fatal(err)
	}
	// As under synchronous replication: the event is out, its commit is not visible.
	e := &event.Event{Source: "lessons", ID: "e1", Occurrence: written, Type: "t", Row: "1", XID: xid, Position: event.Position{Epoch: 1, Commit: 8}}
	gone := &event.Event{Source: "lessons", ID: "e0", Occurrence: written, Type: "t", Row: "0", XID: xid - 1, Position: event.Position{Epoch: 1, Commit: 4}}
	record(t, store, "sub", e, gone)
	pay(t, store, "sub", 16, lane.Paid{Event: e}, lane.Paid{Event: gone})
	if round := markRows(t, store); round.Left != 1 || round.Done != 1 {
		t.Errorf("got %+v, want the hidden one left, and nothing kept of the one that its owner deleted", round)
	}
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	markRows(t, store)
	want(t, "marked", marked(db), "e1:0")
}

func TestPaid_raisesTheSecuredPositionAndNeverLowersIt(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	subscribe(db, "sub", "other")
	for _, test := range []struct {
		position event.Position
		want     string
	}{
		{event.Position{Epoch: 1, Commit: 0x10, Ordinal: 7}, "1 0/10 7"},
		{event.Position{Epoch: 1, Commit: 0x10, Ordinal: 6}, "1 0/10 7"},
		{event.Position{Epoch: 1, Commit: 0x100000008}, "1 1/8 0"},
		{event.Position{Epoch: 2, Commit: 8}, "2 0/8 0"},
		{event.Position{Epoch: 1, Commit: 0x200000000}, "2 0/8 0"},
	} {
		if err := store.Paid(t.Context(), "sub", nil, test.position); err != nil {
			t.Fatal(err)
		}
		want(t, "secured", db.Text(`SELECT secured_epoch || ' ' || secured_commit || ' ' || secured_ordinal FROM walpost.subscribers WHERE name = 'sub'`), test.want)
	}
	want(t, "other", db.Text(`SELECT secured_commit::text FROM walpost.subscribers WHERE name = 'other'`), "0/0")
}

func TestMarkRows_isAllOrNothing(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 1)
	subscribe(db, "sub")
	record(t, store, "sub", events...)
	db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this row'; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
	pay(t, store, "sub", events[0].Position.Commit, lane.Paid{Event: events[0]})
	_, err := store.MarkRows(t.Context(), debt.MarkQuery{Passed: event.Position{Epoch: 1, Commit: 1 << 40}, Limit: 10,
		Open: func([]event.Identity) map[event.Identity]bool { return nil }})
	if err == nil {
		t.Fatal("got no error from a mark that was refused")
	}
	want(t, "still to be marked", db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'paid' AND mark`), 1)
}

// A person and the relay change the same deliveries, each in an order of their own.
func TestPaid_beginsAgainAfterADeadlock(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 2)
	record(t, store, "sub", events...)
	person, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	touch := func(eventID string) error {
		_, err := person.Exec(t.Context(), `UPDATE walpost.owed SET attempts = 9 WHERE event_id = $1`, eventID)
		return err
	}
	// Later than the relay's second, so that it is the relay that loses.
	if _, err := person.Exec(t.Context(), `SET LOCAL deadlock_timeout = '20s'`); err != nil {
		t.Fatal(err)
	}
	if err := touch("e2"); err != nil {
		t.Fatal(err)
	}
	paid := make(chan error, 1)
	go func() {
		paid <- store.Paid(context.Background(), "sub", []lane.Paid{{Event: events[0]}, {Event: events[1]}}, events[1].Position)
	}()
	for deadline := time.Now().Add(20 * time.Second); db.Int(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()`) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("Paid never waited for the person")
		}
	}
	if err := touch("e1"); err == nil {
		err = person.Commit(t.Context())
		if err != nil {
			t.Error(err)
		}
	} else if err := person.Rollback(t.Context()); err != nil { // the machine was slow, and the person lost
		t.Error(err)
	}
	if err := <-paid; err != nil {
		t.Errorf("got %v, want the payment to begin again", err)
	}
	markRows(t, store)
	want(t, "owed", db.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`), 0)
	want(t, "marked", marked(db), "e1:0 e2:0")
}

// A large debt is paid in bounded memory, whatever was paid before it.
func TestWaitingAndPaid_passTwoHundredThousandDeliveries(t *testing.T) {
	unmarked := lessons()
	unmarked.Mark = false // marks cost the same for each row, and most of the time
	passDebt(t, unmarked, 200_000)
}

func TestWaitingAndPaid_markEachRowOfALargeDebt(t *testing.T) {
	db := passDebt(t, lessons(), 20_000)
	want(t, "unmarked rows", db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`), 0)
}

// passDebt pays a debt of total deliveries. Statistics say that nothing is owed and nothing refreshes
// them; with a plan that believes them this would take hours.
func passDebt(t *testing.T, source *outbox.Source, total int) *testdb.DB {
	t.Helper()
	const page = 1000
	db := testdb.New(t)
	store := open(t, db, source)
	subscribe(db, "sub")
	db.Exec(`ALTER TABLE walpost.owed SET (autovacuum_enabled = false)`)
	db.Exec(`ANALYZE walpost.owed`)
	// By SQL, because so many events in memory would be what this test is against.
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload, created_at)
		SELECT i, 'e' || i, 't', 'k' || i % 100, jsonb_build_object('n', i, 'text', repeat('x', 200)), $2 FROM generate_series(1, $1::int) i`, total, written)
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, row_id, size, copied)
		SELECT $1, 'sub', 'lessons', 'e' || i, $3, 'waiting', 1, '0/8', i, 't', 'k' || i % 100, i::text, 250, false FROM generate_series(1, $2::int) i`, slot, total, written)
	var at event.Position
	heap, paidTotal := uint64(0), 0
	for begun := time.Now(); ; {
		read, err := store.Waiting(t.Context(), "sub", lane.Query{After: at, Limit: page, Examine: 20_000, Bytes: 8 << 20})
		if err != nil {
			t.Fatal(err)
		}
		owed := read.Owed
		if len(owed) == 0 {
			break
		}
		paid := make([]lane.Paid, len(owed))
		for i, o := range owed {
			if want := int64(paidTotal + i + 1); o.Event.Position.Ordinal != want || o.Event.Invalid != "" {
				t.Fatalf("got %v (%s), want ordinal %d", o.Event.Position, o.Event.Invalid, want)
			}
			paid[i].Event = o.Event
		}
		at = owed[len(owed)-1].Event.Position
		if err := store.Paid(t.Context(), "sub", paid, at); err != nil {
			t.Fatal(err)
		}
		if paidTotal += len(paid); paidTotal%(total/10) == 0 {
			heap = max(heap, heapInUse())
			t.Logf("%d paid after %v", paidTotal, time.Since(begun).Round(time.Millisecond))
		}
	}
	for begun := time.Now(); ; {
		round, err := store.MarkRows(t.Context(), debt.MarkQuery{Passed: event.Position{Epoch: 1, Commit: 1 << 40}, Limit: page,
			Open: func([]event.Identity) map[event.Identity]bool { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		if heap = max(heap, heapInUse()); round.Next == nil {
			t.Logf("marked after %v", time.Since(begun).Round(time.Millisecond))
			break
		}
	}
	want(t, "paid", paidTotal, total)
	want(t, "left", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
	if heap > 32<<20 {
		t.Errorf("%d MiB of heap, want it to stay below 32", heap>>20)
	}
	return db
}

// alongTheIndex is what the plan of a read of ten deliveries says of those that it has examined.
var alongTheIndex = regexp.MustCompile(`Index Scan using owed_waiting on owed w\w* \(actual rows=1\d(?:\.00)? `)

// Statistics of a queue are always of another hour, so no plan may depend on them.
func TestWaiting_readsAlongTheIndexWhateverTheStatisticsSay(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`ALTER TABLE walpost.owed SET (autovacuum_enabled = false)`)
	db.Exec(`ANALYZE walpost.owed`) // while it is empty
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key)
		SELECT $1, s, 'm', 'e' || i, '', CASE WHEN i % 5 = 0 THEN 'dead' ELSE 'waiting' END, 1, '0/8', i, 't', 'k' || i % 7
		FROM generate_series(1, 20000) i, unnest('{a,b}'::text[]) s`, slot)
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, first_failure, next_attempt)
		SELECT $1, s, 'm', 'f' || i, '', 'waiting', 1, '0/8', -i, 't', 'f' || i, now(), now() + '1h'
		FROM generate_series(1, 5000) i, unnest('{a,b}'::text[]) s`, slot) // keys that fail
	for _, statistics := range []string{`SELECT 'those of an empty table'`, `ANALYZE walpost.owed`} {
		db.Exec(statistics)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			var plan []string
			err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SET LOCAL plan_cache_mode = `+mode); err != nil {
					return err
				}
				rows, err := tx.Query(t.Context(), `EXPLAIN (ANALYZE, COSTS off, TIMING off) `+debt.WaitingSQL,
					slot, "a", int32(1), "0/8", int64(10000), []string{"k1"}, 10, int64(1<<20), "key", []string{"f1"}, time.Now(), []string{"m"}, 1000, false)
				if err != nil {
					return err
				}
				plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(plan, "\n")
			if !alongTheIndex.MatchString(text) || !strings.Contains(text, "Index Scan using owed_failing on owed f") ||
				!strings.Contains(text, "on owed w (never executed)") || strings.Contains(text, "Sort") {
				t.Errorf("%s, %s: got\n%s", statistics, mode, text)
			}
		}
	}
}

// S-131: what is paid and waits for its mark, or for the stream to pass its bound, is not read again by each payment.
func TestPaid_readsNothingThatHasToWait(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`ALTER TABLE walpost.owed SET (autovacuum_enabled = false)`)
	db.Exec(`ANALYZE walpost.owed`) // while it is empty
	for _, rows := range []string{
		`'0/8', i, '0/8', false, true FROM generate_series(1, 5000) i`,        // to be marked
		`'0/7', i, '0/900000', true, false FROM generate_series(1, 5000) i`,   // read from the table, and may still come in the stream
		`'0/8000', i, '0/8000', false, false FROM generate_series(1, 5000) i`, // behind another delivery of its key that is open
		`'0/10', i, '0/10', false, false FROM generate_series(1, 10) i`,       // to be removed
	} {
		db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, event_type, key, epoch, commit_lsn, ordinal, bound, made_up, mark)
			SELECT $1, s, 'm', 'e' || i, $2::text, 'paid', 't', '', 1, `+rows+`, unnest('{a,b}'::text[]) s`, slot, rows)
	}
	for _, statistics := range []string{`SELECT 'those of an empty table'`, `ANALYZE walpost.owed`} {
		db.Exec(statistics)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			var plan []string
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mustExec := func(sql string) {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			mustExec(`SET LOCAL plan_cache_mode = ` + mode)
			rows, err := tx.Query(t.Context(), `EXPLAIN (ANALYZE, COSTS off, TIMING off) `+debt.RemovePassedSQL, slot, "a", int32(1), "0/4000", int64(0))
			if err == nil {
				plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(plan, "\n")
			if strings.Count(text, "Index Scan using owed_paid") != 2 || !strings.Contains(text, "(actual rows=10") || strings.Contains(text, "Removed by") {
				t.Errorf("%s, %s: got\n%s", statistics, mode, text)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func BenchmarkRecord_byReference(b *testing.B) { benchmarkRecord(b, lessons()) }

func BenchmarkRecord_withCopies(b *testing.B) { benchmarkRecord(b) }

func benchmarkRecord(b *testing.B, sources ...*outbox.Source) {
	db := testdb.New(b)
	store := open(b, db, sources...)
	events := make([]*event.Event, 1000)
	payload := []byte(`{"text": "` + strings.Repeat("x", 300) + `"}`)
	for n := 0; b.Loop(); n++ {
		for i := range events {
			id := n*1000 + i
			events[i] = &event.Event{Source: "lessons", ID: "01JABCDEFGHJKMNP" + event.LSN(id).String(), Type: "lesson.completed", Key: "42",
				Row: "7", Payload: payload, Position: event.Position{Epoch: 1, Commit: event.LSN(8 * id)}}
		}
		record(b, store, "sub", events...)
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkPay(b *testing.B) {
	db := testdb.New(b)
	store := open(b, db)
	events := make([]*event.Event, 1000)
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		for i := range events {
			id := n*1000 + i
			events[i] = &event.Event{Source: "m", ID: event.LSN(id).String(), Key: "42", Payload: []byte(`{}`), Position: event.Position{Epoch: 1, Commit: event.LSN(8 * id)}}
		}
		record(b, store, "sub", events...)
		b.StartTimer()
		owed := waiting(b, store, "sub")
		paid := make([]lane.Paid, len(owed))
		for i := range owed {
			paid[i].Event = owed[i].Event
		}
		if err := store.Paid(b.Context(), "sub", paid, events[999].Position); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "rows/s")
}

// S-108: a position is sorted as one, and not as the text that the query returns of it: "0/10" is behind "0/8".
func TestStore_ordersByPositionsAndNotByTheirText(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	subscribe(db, "sub")
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, payload, created_at) SELECT i, 'e' || i, 't', '{}', $1 FROM generate_series(1, 2) i`, written)
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, bound, ordinal, event_type, key, row_id, copied)
		VALUES ($1, 'sub', 'lessons', 'e1', $2, 'waiting', 1, '0/10', '0/10', 0, 't', '', '1', false),
		       ($1, 'sub', 'lessons', 'e2', $2, 'waiting', 1, '0/8', '0/8', 0, 't', '', '2', false)`, slot, written)
	changes, err := store.Changes(t.Context(), "sub")
	if err != nil {
		t.Fatal(err)
	}
	if changes.Holds == nil || changes.Holds.Commit != 0x8 {
		t.Errorf("the oldest that the server would send again: got %v, want that of 0/8", changes.Holds)
	}
	db.Exec(`UPDATE walpost.owed SET state = 'paid', mark = true`)
	query := debt.MarkQuery{Passed: event.Position{Epoch: 1, Commit: 1 << 40}, Limit: 1, Open: func([]event.Identity) map[event.Identity]bool { return nil }}
	if _, err := store.MarkRows(t.Context(), query); err != nil {
		t.Fatal(err)
	}
	if got := db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NOT NULL`); !slices.Equal(got, []string{"e2"}) {
		t.Errorf("the first round marked %q, want e2", got)
	}
}
