package debt_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

const (
	slot = "s"
	// written is when fill writes its rows, and so their occurrence.
	written = "2024-03-10 06:30:00+00"
)

// lessons is the source of the reference service, whose rows only walpost deletes.
func lessons() *outbox.Source {
	return &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
}

// open returns a debt that knows the tables of the sources.
func open(t testing.TB, db *testdb.DB, sources ...*outbox.Source) *debt.Store {
	t.Helper()
	var tables []*outbox.Table
	for _, source := range sources {
		table, err := source.Inspect(t.Context(), db.Pinned)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	store := debt.NewStore(db.Pinned, slot)
	store.Use(tables)
	return store
}

// fill writes n rows into the outbox, with ids 1 to n and one key for every ten, and returns their
// events as a stream would: each its own transaction, at the positions 8, 16 and so on.
func fill(t testing.TB, db *testdb.DB, n int) []*event.Event {
	t.Helper()
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload, created_at)
		SELECT i, 'e' || i, 't', 'k' || i % 10, jsonb_build_object('n', i), $2 FROM generate_series(1, $1::int) i`, n, written)
	events := make([]*event.Event, n)
	for i := range events {
		n := i + 1
		events[i] = &event.Event{Source: "lessons", ID: fmt.Sprint("e", n), Type: "t", Key: fmt.Sprint("k", n%10), Row: fmt.Sprint(n),
			Payload: fmt.Appendf(nil, `{"n": %d}`, n), Headers: []byte(`{}`), OccurredAt: written, Occurrence: written,
			Position: event.Position{Epoch: 1, Commit: event.LSN(8 * n)}}
	}
	return events
}

func owed(events []*event.Event) []lane.Owed {
	owed := make([]lane.Owed, len(events))
	for i, e := range events {
		owed[i].Event = e
	}
	return owed
}

func record(t testing.TB, store *debt.Store, subscriber string, events ...*event.Event) {
	t.Helper()
	if _, err := store.Record(t.Context(), subscriber, owed(events)); err != nil {
		t.Fatal(err)
	}
}

func pay(t testing.TB, store *debt.Store, subscriber string, secured event.LSN, paid ...lane.Paid) {
	t.Helper()
	if err := store.Paid(t.Context(), subscriber, paid, event.Position{Epoch: 1, Commit: secured}); err != nil {
		t.Fatal(err)
	}
}

func waiting(t testing.TB, store *debt.Store, subscriber string) []lane.Owed {
	t.Helper()
	page, err := store.Waiting(t.Context(), subscriber, lane.Query{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return page.Owed
}

func subscribe(db *testdb.DB, names ...string) {
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) SELECT $1, unnest($2::text[])`, slot, names)
}

// stand makes the slot's recorded position.
func stand(db *testdb.DB, confirmed event.LSN) {
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state, confirmed) VALUES ($1, '7', 1, 'ready', $2::text::pg_lsn)
		ON CONFLICT (slot) DO UPDATE SET confirmed = excluded.confirmed`, slot, confirmed.String())
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// contracted is a debt whose marks can be read.
type contracted struct {
	*debt.Store
	db *testdb.DB
}

func (c contracted) Marked(e *event.Event) (attempts int, marked bool) {
	for _, found := range c.db.Texts(`SELECT attempts::text FROM outbox WHERE event_id = $1 AND published_at IS NOT NULL`, e.ID) {
		attempts, _ = strconv.Atoi(found)
		marked = true
	}
	return attempts, marked
}

// runContract runs it against a store for the sources, in a slot for each test: that is as good as a database.
func runContract(t *testing.T, source *outbox.Source) {
	db := testdb.New(t)
	table, err := source.Inspect(t.Context(), db.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	debttest.Run(t, func(t *testing.T, events []*event.Event) debttest.Debt {
		db.Exec(`DELETE FROM outbox`)
		for _, e := range events {
			db.Exec(`INSERT INTO outbox (id, event_id, event_type, aggregate_type, aggregate_id, partition_key, payload, headers, created_at)
				VALUES ($1::text::int, $2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb, $9::text::timestamptz)`,
				e.Row, e.ID, e.Type, e.AggregateType, e.AggregateID, e.Key, string(e.Payload), string(e.Headers), e.OccurredAt)
		}
		db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'sub'), ($1, 'other')`, t.Name())
		store := debt.NewStore(db.Pinned, t.Name())
		store.Use([]*outbox.Table{table})
		return contracted{store, db}
	})
}

func TestStore_keepsTheContractWithCopies(t *testing.T) {
	shared := lessons()
	shared.Ours = false
	runContract(t, shared)
}

func TestStore_keepsTheContractByReference(t *testing.T) { runContract(t, lessons()) }

func TestStore_pointsToRowsThatOnlyWalpostDeletesAndCopiesOthers(t *testing.T) {
	db := testdb.New(t)
	events := fill(t, db, 3)
	message := &event.Event{Source: "messages", ID: "m", Type: "t", Payload: []byte(`1`), Position: event.Position{Epoch: 1, Commit: 4}}
	record(t, open(t, db, lessons()), "own", events[0], message, events[1])
	shared := lessons()
	shared.Ours = false
	record(t, open(t, db, shared), "shared", events[0])
	got := db.Texts(`SELECT subscriber || ' ' || event_id || ' ' || copied || ' ' || coalesce(payload, '-') FROM walpost.owed ORDER BY subscriber, event_id`)
	if want := []string{`own e1 false -`, `own e2 false -`, `own m true 1`, `shared e1 true {"n": 1}`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	back := waiting(t, open(t, db, lessons()), "own")
	want(t, "first", string(back[0].Event.Payload), "1")
	want(t, "last", string(back[2].Event.Payload), `{"n": 2}`)
}

func TestWaiting_saysThatARowIsGone(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	record(t, store, "sub", events...)
	db.Exec(`DELETE FROM outbox WHERE id = 1`)
	db.Exec(`UPDATE outbox SET event_id = 'another' WHERE id = 2`)
	got := waiting(t, store, "sub")
	replaced := fmt.Sprintf("%s: its primary key is now that of event \"another\", occurrence %q; the event that is owed was occurrence %[2]q",
		debt.Gone, events[1].Occurrence)
	for i, invalid := range []string{debt.Gone, replaced, ""} {
		want(t, "invalid", got[i].Event.Invalid, invalid)
		want(t, "id", got[i].Event.ID, events[i].ID)
		want(t, "position", got[i].Event.Position, events[i].Position)
	}
	// Then it is a dead letter without a copy, and still says so.
	letter := got[0]
	letter.Err = letter.Event.Invalid
	if _, err := store.Dead(t.Context(), "sub", letter); err != nil {
		t.Fatal(err)
	}
	rows, err := store.Show(t.Context(), "e1")
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].State != lane.StateDead || rows[0].Copied || rows[0].Err != debt.Gone || rows[0].Event.Invalid != debt.Gone {
		t.Errorf("got %+v, want a dead letter that says that its row is gone", rows)
	}
	letter = got[1]
	letter.Err = letter.Event.Invalid
	if _, err := store.Dead(t.Context(), "sub", letter); err != nil {
		t.Fatal(err)
	}
	lost, err := store.Lost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "lost, one of them replaced", lost["sub"], 2)
}

// S-74: what is lost is a fact of its own: a receiver may answer in the words that walpost uses for it.
func TestLost_countsWhatNoOneCanSendAnyMore(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	events := fill(t, db, 3)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'sub')`, slot)
	record(t, store, "sub", events...)
	db.Exec(`DELETE FROM outbox WHERE id = 1`)
	for _, o := range waiting(t, store, "sub")[:2] {
		if o.Err = o.Event.Invalid; o.Err == "" {
			o.Err = debt.Gone + ", says the receiver"
		}
		if _, err := store.Dead(t.Context(), "sub", o); err != nil {
			t.Fatal(err)
		}
	}
	lost := func() int64 {
		byName, err := store.Lost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return byName["sub"]
	}
	want(t, "lost", lost(), 1)
	redrive(t, store, debt.Filter{Subscriber: "sub"})
	want(t, "lost while it waits", lost(), 0)
	for _, o := range waiting(t, store, "sub")[:1] {
		want(t, "known to be lost when it is read again", o.Event.Lost, true)
		o.Err = o.Event.Invalid
		if _, err := store.Dead(t.Context(), "sub", o); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "lost again", lost(), 1)
}

// Under synchronous replication an event comes a moment, or as long as the standby is away, before its row is
// visible. It is not gone, and what is behind it waits.
func TestWaiting_endsBeforeARowThatIsNotVisibleYet(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	events := fill(t, db, 1)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, epoch, state) VALUES ($1, '1', 1, 1, 'ready')`, slot)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'sub')`, slot)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var id int64
	hidden := &event.Event{Source: "lessons", ID: "hidden", Occurrence: written, Type: "lesson.completed", Key: "a", Position: event.Position{Epoch: 1, Commit: 1 << 40}}
	err = tx.QueryRow(t.Context(), `
		INSERT INTO outbox (id, event_id, event_type, partition_key, payload, created_at) VALUES (100, 'hidden', 'lesson.completed', 'a', '{"n": 7}', $1)
		RETURNING id, (pg_current_xact_id()::text::numeric % 4294967296)::bigint`, written).Scan(&id, &hidden.XID)
	if err != nil {
		t.Fatal(err)
	}
	hidden.Row = fmt.Sprint(id)
	behind := *events[0]
	behind.Position = event.Position{Epoch: 1, Commit: 1<<40 + 8}
	record(t, store, "sub", hidden)
	record(t, store, "both", hidden)
	record(t, store, "both", &behind)

	for _, sub := range []string{"sub", "both"} {
		got, err := store.Waiting(t.Context(), sub, lane.Query{Limit: 10})
		if err == nil || !strings.Contains(err.Error(), `"hidden"`) || !strings.Contains(err.Error(), "not visible yet") {
			t.Errorf("%s: got %v, %v; want an error that names the event and why", sub, got, err)
		}
	}
	if _, _, err := store.Add(t.Context(), "sub", []string{"hidden"}, lane.StateDead, "ann", "why"); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("got %v from an end by hand, want that to be tried again", err)
	}
	earlier := *events[0]
	earlier.Position = event.Position{Epoch: 1, Commit: 1}
	record(t, store, "earlier", &earlier)
	record(t, store, "earlier", hidden)
	if got := waiting(t, store, "earlier"); len(got) != 1 || got[0].Event.ID != earlier.ID {
		t.Errorf("got %v, want what is before the hidden one", got)
	}

	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := waiting(t, store, "both")
	want(t, "number", len(got), 2)
	want(t, "first", string(got[0].Event.Payload), `{"n": 7}`)
	want(t, "invalid", got[0].Event.Invalid, "")

	// Gone is what is not there although its transaction has ended, or was one of another server.
	db.Exec(`DELETE FROM outbox WHERE event_id = 'hidden'`)
	want(t, "invalid", waiting(t, store, "sub")[0].Event.Invalid, debt.Gone)
	another, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = another.Rollback(t.Context()) }()
	var xid int64
	if err := another.QueryRow(t.Context(), `SELECT (pg_current_xact_id()::text::numeric % 4294967296)::bigint`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	db.Exec(`UPDATE walpost.owed SET xid = $1 WHERE event_id = 'hidden'`, xid)
	if _, err := store.Waiting(t.Context(), "sub", lane.Query{Limit: 10}); err == nil {
		t.Error("a transaction that runs counts as ended")
	}
	db.Exec(`UPDATE walpost.slots SET epoch = 2`)
	want(t, "invalid", waiting(t, store, "sub")[0].Event.Invalid, debt.Gone)
}

// S-134: a source that left the configuration is not the same as rows that are gone. What is owed of it waits, is counted
// by its name, and keeps nothing else back; a person who asks for it is told.
func TestWaiting_leavesOutWhatIsOwedOfASourceThatIsMissing(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 2)
	record(t, store, "sub", events[0])
	store.Use(nil)
	record(t, store, "sub", events[1]) // copied
	want(t, "read", ids(waiting(t, store, "sub")), "e2")
	absent, err := store.AbsentSources(t.Context())
	if err != nil || len(absent) != 1 || absent["sub"]["lessons"] != 1 {
		t.Errorf("absent: %v, %v, want one of lessons", absent, err)
	}
	pay(t, store, "sub", 100, lane.Paid{Event: events[1]})
	changes, err := store.Changes(t.Context(), "sub")
	if err != nil || changes.Any || changes.Holds != nil {
		t.Errorf("changes: %+v, %v, want that nothing waits", changes, err)
	}
	loaded, err := store.Load(t.Context(), "sub", event.Position{}, lane.Limit{Keys: 10, Rows: 10})
	if err != nil || len(loaded.Keys) != 0 || loaded.More {
		t.Errorf("loaded %+v, %v, want no key", loaded, err)
	}
	if _, err := store.Show(t.Context(), "e1"); err == nil || !strings.Contains(err.Error(), `source "lessons"`) || !strings.Contains(err.Error(), "put it back") {
		t.Errorf("to a person: %v, want the source and what to do", err)
	}
	store = open(t, db, lessons())
	want(t, "read when it is back", ids(waiting(t, store, "sub")), "e1")
}

func TestDead_keepsACopyUnlessTheEventWasTooLargeToHold(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	record(t, store, "sub", events[0])
	large := *events[1]
	large.Payload, large.Headers, large.Invalid = nil, nil, "payload of 100 MB is over max_event"
	null := *events[2]
	null.Payload = nil
	for _, e := range []*event.Event{events[0], &large, &null} {
		if _, err := store.Dead(t.Context(), "sub", lane.Owed{Event: e, Attempts: 2, Err: "no"}); err != nil {
			t.Fatal(err)
		}
	}
	got := db.Texts(`SELECT event_id || ' ' || copied || ' ' || coalesce(payload, '-') || ' ' || attempts FROM walpost.owed ORDER BY event_id`)
	if want := []string{`e1 true {"n": 1} 2`, `e2 false - 2`, `e3 true - 2`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	rows, err := store.Show(t.Context(), "e2")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "payload of the large one", string(rows[0].Event.Payload), `{"n": 2}`)
}

// F-08: the caller keeps the event open, so it must hear of it.
func TestRecordAndDead_areErrorsWhereTheDatabaseRefuses(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 2)
	db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room for %', NEW.event_id; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON walpost.owed FOR EACH ROW WHEN (NEW.event_id = 'e2') EXECUTE FUNCTION refuse()`)
	_, recordErr := store.Record(t.Context(), "sub", owed(events))
	_, deadErr := store.Dead(t.Context(), "sub", lane.Owed{Event: events[1]})
	for _, err := range []error{recordErr, deadErr} {
		if err == nil || !strings.Contains(err.Error(), "no room for e2") {
			t.Errorf("got %v, want what the database says", err)
		}
	}
	want(t, "recorded, all or none", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
	db.Exec(`DROP TRIGGER refuse ON walpost.owed`)
	for range 2 {
		if _, err := store.Dead(t.Context(), "sub", lane.Owed{Event: events[1]}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "dead letters", db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`), 1)
}

func TestRecord_takesWhatAReceiverSaysAndWhatPostgresCannotStore(t *testing.T) { // F-58
	db := testdb.New(t)
	store := open(t, db)
	e := &event.Event{Source: "messages", ID: "e", Type: "t", Key: "a\x00b\xff", Payload: []byte(`"\u0000 ü"`), Position: event.Position{Epoch: 1}}
	_, err := store.Record(t.Context(), "sub", []lane.Owed{{Event: e, Err: "\x00\xff" + strings.Repeat("ü", 4096)}})
	if err != nil {
		t.Fatal(err)
	}
	got := waiting(t, store, "sub")[0]
	want(t, "key", got.Event.Key, "ab\uFFFD")
	want(t, "payload", string(got.Event.Payload), `"\u0000 ü"`)
	if n := len(got.Err); n > 4096 || n < 4094 || !strings.HasPrefix(got.Err, "\uFFFDü") {
		t.Errorf("error: got %d bytes, %q", n, got.Err[:8])
	}
}

func TestRecord_keepsWhatAPayloadIs(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	for n, typ := range []event.PayloadType{event.JSON, event.Text, event.Binary} {
		record(t, store, "sub", &event.Event{Source: "messages", ID: fmt.Sprint(n), Type: "t", Payload: []byte(`\x7b`), PayloadType: typ, Position: event.Position{Epoch: 1, Ordinal: int64(n)}})
		want(t, "type of the payload", waiting(t, store, "sub")[n].Event.PayloadType, typ)
	}
}

func TestRecord_inPiecesKeepsEveryDelivery(t *testing.T) {
	db := testdb.New(t)
	events := fill(t, db, 2500)
	record(t, open(t, db, lessons()), "own", events...)
	want(t, "by reference", db.Int(`SELECT count(*) FROM walpost.owed WHERE NOT copied`), 2500)
	large := make([]*event.Event, 5)
	for i := range large {
		large[i] = &event.Event{Source: "m", ID: fmt.Sprint(i), Payload: []byte(strings.Repeat("x", 3<<20)), Position: event.Position{Ordinal: int64(i + 1)}}
	}
	store := open(t, db)
	record(t, store, "copies", large...)
	got, err := store.Waiting(t.Context(), "copies", lane.Query{Limit: 100, Bytes: 7 << 20})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "large ones in 7 MiB", len(got.Owed), 2)
}

func TestRecordWaiting_belongsToTheCallersTransaction(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 10)
	creation := func(fail error) error {
		return postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
			for _, subscriber := range []string{"a", "b"} {
				for piece := range slices.Chunk(owed(events), 4) {
					if err := store.RecordWaiting(t.Context(), tx, subscriber, piece); err != nil {
						return err
					}
				}
			}
			return fail
		})
	}
	if err := creation(context.Canceled); err == nil {
		t.Fatal("got no error")
	}
	want(t, "after a rollback", db.Int(`SELECT count(*) FROM walpost.owed`), 0)
	for range 2 { // a creation that is repeated
		if err := creation(nil); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "owed", db.Int(`SELECT count(*) FROM walpost.owed`), 20)
}

func TestLookAndLoad_tellThatASubscriberIsPaused(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	subscribe(db, "sub")
	for _, paused := range []bool{true, false} {
		change := store.Resume
		if paused {
			change = store.Pause
		}
		if err := change(t.Context(), "sub", "me", "maintenance"); err != nil {
			t.Fatal(err)
		}
		look, err := store.Changes(t.Context(), "sub")
		if err != nil {
			t.Fatal(err)
		}
		load, err := store.Load(t.Context(), "sub", event.Position{}, lane.Limit{Keys: 1, Rows: 10})
		if err != nil {
			t.Fatal(err)
		}
		if look.Paused != paused || load.Paused != paused {
			t.Errorf("got %t and %t, want %t", look.Paused, load.Paused, paused)
		}
	}
}

// Without track_commit_timestamp a row that was read from the table has no commit time.
func TestLook_agesAnEventWithoutCommitTimeFromWhenItWasRecorded(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	record(t, store, "sub", &event.Event{Source: "m", ID: "e", Position: event.Position{Commit: 7}})
	look, err := store.Changes(t.Context(), "sub")
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(look.OldestAt); age < 0 || age > time.Hour {
		t.Errorf("oldest at %v, want just now", look.OldestAt)
	}
	if at := waiting(t, store, "sub")[0].Event.CommittedAt; !at.IsZero() {
		t.Errorf("committed at %v, want zero", at)
	}
}

func TestStores_ofDifferentSlotsHaveNothingToDoWithEachOther(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1)
	record(t, store, "sub", events...)
	other := debt.NewStore(db.Pinned, "another")
	if got := waiting(t, other, "sub"); len(got) != 0 {
		t.Errorf("waiting: got %v", got)
	}
	if outcome, err := other.Discard(t.Context(), debt.Filter{Subscriber: "sub"}, "me", ""); outcome.Deliveries != 0 || err != nil {
		t.Errorf("discarded: got %d, %v", outcome.Deliveries, err)
	}
	counts, err := store.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []debt.Count{{Subscriber: "sub", State: "waiting", Number: 1}}; !slices.Equal(counts, want) {
		t.Errorf("counts: got %v, want %v", counts, want)
	}
}

// openAs opens a pool whose sessions have another role.
func openAs(t *testing.T, db *testdb.DB, role string) (*postgres.Pool, error) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), db.DSN+"&role="+role, t.Name())
	if err == nil {
		t.Cleanup(pool.Close)
	}
	return pool, err
}
