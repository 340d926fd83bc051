package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// builds are what a relay may have to build, by name. Each leaves three rows that are in no stream.
var builds = map[string]struct {
	prepare func(t *testing.T, db *testdb.DB)
	kind    string // of the repair, "" for the first creation
}{
	"first creation": {func(_ *testing.T, db *testdb.DB) {
		insertAll(db, "a", numbered("waiting", 3))
	}, ""},
	"slot made again": {func(t *testing.T, db *testdb.DB) {
		streaming(t, options(t, db, subscribertest.Recording())).shutDown()
		insertAll(db, "a", numbered("waiting", 3))
		db.Exec(dropSlot, db.Name)
	}, "again"},
	"slot kept": {func(t *testing.T, db *testdb.DB) {
		streaming(t, options(t, db, subscribertest.Recording())).shutDown()
		insertAll(db, "a", numbered("waiting", 3))
		db.Exec(advance, db.Name)
	}, "kept"},
	"slot kept behind the record": {func(t *testing.T, db *testdb.DB) {
		streaming(t, options(t, db, subscribertest.Recording())).shutDown()
		db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
		insertAll(db, "a", numbered("waiting", 3))
		db.Exec(`ALTER PUBLICATION walpost ADD TABLE outbox`)
		db.Exec(`UPDATE walpost.slots SET confirmed = pg_current_wal_insert_lsn()`)
	}, "kept"},
}

// F-30: two relays of a slot that know nothing of each other. The second starts while the first records the rows that
// wait, and waits for it. What the first has built the second uses, and builds again what it has not.
func TestRelay_oneOfTwoBuildsAndTheOtherWaits(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil) // transactions that stay open would hold up the other tests' slots
	for name, build := range builds {
		t.Run(name+", and the first goes on", func(t *testing.T) {
			t.Parallel()
			b := newBuilding(t, server, build.prepare)
			b.startSecond()
			b.release()
			b.first.awaitStreaming()
			b.write("after", 3)
			b.firstSub.AwaitDelivered(t, len(b.want))
			if got := b.second.Health().State; got != relay.Waiting {
				t.Errorf("the second is %v while the first streams, want %v", got, relay.Waiting)
			}
			b.first.shutDown()
			b.second.awaitStreaming()
			b.write("second", 3)
			b.secondSub.AwaitDelivered(t, 3)
			b.wantEnd(b.second, build.kind)
		})
		t.Run(name+", and the first is killed", func(t *testing.T) {
			t.Parallel()
			b := newBuilding(t, server, build.prepare)
			b.startSecond()
			b.line.end()
			b.first.stop()
			b.awaitLeadWaits() // for what the dead one has left on the server
			b.release()
			b.second.awaitStreaming()
			b.write("after", 3)
			b.secondSub.AwaitDelivered(t, len(b.want))
			b.wantEnd(b.second, build.kind)
		})
		t.Run(name+", and the first loses its session", func(t *testing.T) {
			t.Parallel()
			b := newBuilding(t, server, build.prepare)
			b.startSecond()
			b.db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE ` + sessionLock)
			b.awaitLeadWaits()
			b.release() // the first commits what it has, and only then finds out
			b.second.awaitStreaming()
			b.write("after", 3)
			b.secondSub.AwaitDelivered(t, len(b.want))
			eventually(t, "the first waits", func() bool { return b.first.Health().State == relay.Waiting })
			b.first.shutDown()
			b.wantEnd(b.second, build.kind)
		})
		t.Run(name+", and the second has a lease", func(t *testing.T) {
			t.Parallel()
			b := newBuilding(t, server, build.prepare)
			b.second = start(t, withLease(t, b.options, b.db.DSN))
			b.awaitLeadWaits() // it has ended the session of the first
			b.release()
			b.second.awaitStreaming()
			b.write("after", 3)
			b.secondSub.AwaitDelivered(t, len(b.want))
			b.first.stop()
			b.wantEnd(b.second, build.kind)
		})
	}
}

// sessionLock is the lock of the session that builds, in pg_locks.
const sessionLock = `locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// building is a relay that is held while it records the rows that wait, and another one that starts then.
type building struct {
	t                   *testing.T
	db                  *testdb.DB
	line                *line // of the first
	first, second       *running
	firstSub, secondSub *subscribertest.Fake
	options             relay.Options // of the second
	release             func()
	want                []string // what was written, in order
}

func newBuilding(t *testing.T, server *pgserver.Server, prepare func(*testing.T, *testdb.DB)) *building {
	t.Helper()
	b := &building{t: t, db: testdb.On(t, server), firstSub: subscribertest.Recording(), secondSub: subscribertest.Recording()}
	prepare(t, b.db)
	b.want = numbered("waiting", 3)
	hold := session(t, b.db.DSN)
	mustExec(t, hold, `BEGIN; LOCK TABLE walpost.owed IN EXCLUSIVE MODE`)
	b.release = func() { mustExec(t, hold, `COMMIT`) }

	line, dsn := newLine(t, b.db.DSN)
	b.line = line
	b.first = start(t, apart(t, dsn, options(t, b.db, b.firstSub)))
	eventually(t, "the first records", func() bool {
		return b.db.Int(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'walpost.owed'::regclass
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0 // copies have the same oids
	})
	b.options = options(t, b.db, b.secondSub)
	b.write("meanwhile", 3)
	return b
}

// startSecond starts the second relay, which finds that the first is at work.
func (b *building) startSecond() {
	b.t.Helper()
	b.second = start(b.t, apart(b.t, b.db.DSN, b.options))
	eventually(b.t, "the second waits", func() bool { return b.second.Health().State == relay.Waiting })
}

// apart gives a relay connections and metrics of its own.
func apart(t *testing.T, dsn string, o relay.Options) relay.Options {
	t.Helper()
	o.Pool, o.ReplicationURL, o.Registry = openPool(t, dsn, 4), dsn, prometheus.NewRegistry()
	return o
}

func (b *building) write(prefix string, n int) {
	insertAll(b.db, "a", numbered(prefix, n))
	b.want = append(b.want, numbered(prefix, n)...)
}

func (b *building) awaitLeadWaits() {
	b.t.Helper()
	eventually(b.t, "the second waits for the transaction of the first", func() bool {
		return b.db.Int(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO walpost.fence%'`) > 0
	})
}

// wantEnd stops the last relay and checks that everything was delivered once and in order, by one repair, and that
// what is recorded of the slot fits it.
func (b *building) wantEnd(last *running, kind string) {
	t, db := b.t, b.db
	t.Helper()
	last.shutDown()
	if got := append(ids(b.firstSub.Calls()), ids(b.secondSub.Calls())...); !slices.Equal(got, b.want) {
		t.Errorf("delivered %v, want %v", got, b.want)
	}
	if unmarked, owed := unmarked(db), owed(db, "sub", "waiting"); unmarked != 0 || owed != 0 {
		t.Errorf("%d rows are unmarked and %d owed after the end, want none", unmarked, owed)
	}
	var want []string
	if kind != "" {
		want = []string{kind}
	}
	if got := db.Texts(`SELECT what ->> 'kind' FROM walpost.audit WHERE action = 'repair'`); !slices.Equal(got, want) {
		t.Errorf("the audit knows repairs %v, want %v", got, want)
	}
	if got := db.Int(`SELECT count(*) FROM walpost.slots w JOIN pg_replication_slots s ON s.slot_name = w.slot
		WHERE w.state = 'ready' AND s.confirmed_flush_lsn <= w.confirmed`); got != 1 {
		t.Errorf("walpost.slots does not fit the slot")
	}
	if got := stillToCome(db); got != 0 {
		t.Errorf("after a clean stop the server would send %d rows again", got)
	}
}

// F-30: several relays that start in the same moment do not take the lead from each other.
func TestRelay_oneOfSeveralThatStartTogetherLeads(t *testing.T) {
	t.Parallel()
	for name, build := range builds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			build.prepare(t, db)
			db.Exec(`CREATE TABLE led (term bigint)`)
			db.Exec(`CREATE FUNCTION led() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.led VALUES (NEW.term); RETURN NEW; END $$`)
			db.Exec(`CREATE TRIGGER led AFTER UPDATE OF term ON walpost.leader FOR EACH ROW EXECUTE FUNCTION led()`)
			sub := subscribertest.Recording()
			relays := make([]*running, 3)
			o := options(t, db, sub)
			for i := range relays {
				relays[i] = start(t, apart(t, db.DSN, o))
			}
			in := func(state relay.State) (n int) {
				for _, r := range relays {
					if r.Health().State == state {
						n++
					}
				}
				return n
			}
			eventually(t, "one streams and the others wait", func() bool { return in(relay.Streaming) == 1 && in(relay.Waiting) == 2 })
			insertAll(db, "a", numbered("after", 3))
			want := append(numbered("waiting", 3), numbered("after", 3)...)
			if got := sub.AwaitDelivered(t, len(want)); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			if got := db.Int(`SELECT count(*) FROM led`); got != 1 {
				t.Errorf("%d leaderships began, want 1", got)
			}
		})
	}
}

// A process that was frozen while it built and wakes after another one has led writes nothing of what it has found
// before; it begins again.
func TestRelay_writesNothingOfASlotUnderATermThatIsOver(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	for name, build := range builds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, server)
			build.prepare(t, db)
			db.Exec(`CREATE TABLE written (state text, term bigint)`)
			db.Exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO public.written SELECT NEW.state, term FROM walpost.leader WHERE slot = NEW.slot; RETURN NEW; END $$`)
			db.Exec(`CREATE TRIGGER note AFTER INSERT OR UPDATE ON walpost.slots FOR EACH ROW EXECUTE FUNCTION note()`)
			hold := session(t, db.DSN)
			if build.kind == "" { // in the making of the slot
				mustExec(t, hold, `BEGIN; INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('held', 'lesson.completed', 'b', '{}')`)
			} else { // in its first look after it has led
				mustExec(t, hold, `BEGIN; LOCK TABLE walpost.subscribers IN ACCESS EXCLUSIVE MODE`)
			}
			const lead = `SELECT coalesce(max(term), 0) FROM walpost.leader`
			before := db.Int(lead)
			sub := subscribertest.Recording()
			r := start(t, apart(t, db.DSN, options(t, db, sub)))
			eventually(t, "it is held", func() bool {
				return db.Int(lead) > before && db.Int(`SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
			})
			first := db.Int(lead)
			reader := store.Key(db.Int(`SELECT reader_key FROM walpost.leader`))
			if err := store.NewFence(db.Name).Lead(context.WithoutCancel(t.Context()), db.Pinned, "another", reader, false); err != nil {
				t.Fatal(err)
			}
			mustExec(t, hold, `COMMIT`)
			r.awaitStreaming()
			sub.AwaitDelivered(t, 3)
			ours := db.Int(lead) // after that of the other
			want := []string{fmt.Sprintf("ready %d", ours)}
			switch build.kind {
			case "": // that it is being made was written under the first of them
				want = []string{fmt.Sprintf("creating %d", first), fmt.Sprintf("creating %d", ours), fmt.Sprintf("ready %d", ours)}
			case "again":
				want = []string{fmt.Sprintf("creating %d", ours), fmt.Sprintf("ready %d", ours)}
			}
			if got := db.Texts(`SELECT DISTINCT state || ' ' || term FROM written ORDER BY 1`); !slices.Equal(got, want) {
				t.Errorf("walpost.slots was written as %v, want %v", got, want)
			}
		})
	}
}

// A relay leads while it makes the slot. When it is stopped then, its successor need not wait whether it still acts.
func TestRelay_givesTheLeadBackWhenItIsStoppedBeforeItStreams(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil))
	commit := early(t, db, "early")
	o := withLease(t, options(t, db, subscribertest.Recording()), db.DSN)
	r := start(t, o)
	const holder = `SELECT coalesce(max(holder), '') FROM walpost.leader`
	eventually(t, "it makes the slot", func() bool { return db.Text(holder) == o.Lease.Holder() && o.Lease.Valid() })
	r.shutDown()
	if got := db.Text(holder); got != "" {
		t.Errorf("%q still leads after it has stopped", got)
	}
	commit()
}

// F-30: three relays without a lease under load, of which some are killed, lose their session, are held while they
// record, or find the slot gone, at random moments and all at once. Nothing is missing, and the first receipts of a key
// have the order of its commits.
func TestRelay_losesAndSwapsNothingOfSeveralWithoutALease(t *testing.T) {
	t.Parallel()
	for round := range rounds(t) {
		random := randomness(t, round)
		db := testdb.On(t, testdb.NewServer(t, nil))
		sub := keeping(nil)
		o := options(t, db, sub)
		o.Drain = 50 * time.Millisecond // the dead deliver nothing
		var relays []*running
		var lines []*line
		begin := func() (*running, *line) {
			l, dsn := newLine(t, db.DSN)
			return start(t, apart(t, dsn, o)), l
		}
		for range 3 {
			r, l := begin()
			relays, lines = append(relays, r), append(lines, l)
		}
		const keys = 5
		stopWriting, wrote := make(chan struct{}), make(chan int)
		writer := session(t, db.DSN)
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stopWriting:
					wrote <- n
					return
				case <-time.After(2 * time.Millisecond):
				}
				_, err := writer.Exec(t.Context(), `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', $2, '{}')`,
					fmt.Sprintf("%06d", n), fmt.Sprint(n%keys))
				if err != nil {
					t.Error(err)
				}
			}
		}()
		hold := session(t, db.DSN)
		endSessions := func() {
			db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()`)
		}
		for range 12 {
			switch random.IntN(4) {
			case 0:
				i := random.IntN(len(relays))
				lines[i].end()
				relays[i].stop()
				relays[i], lines[i] = begin()
			case 1:
				endSessions()
			case 2:
				endSessions()
				_, _ = db.Pool.Exec(t.Context(), dropSlot, db.Name) // unless another has it already
			case 3:
				mustExec(t, hold, `BEGIN; LOCK TABLE walpost.owed IN EXCLUSIVE MODE`)
				endSessions()
				_, _ = db.Pool.Exec(t.Context(), dropSlot, db.Name)
				time.Sleep(time.Duration(random.IntN(800)) * time.Millisecond)
				endSessions()
				mustExec(t, hold, `COMMIT`)
			}
			time.Sleep(time.Duration(random.IntN(800)) * time.Millisecond)
		}
		close(stopWriting)
		written := <-wrote
		for _, r := range relays {
			r.stop()
		}
		for _, r := range relays {
			// One that was overtaken during its stop says what it could not write any more.
			if err := r.wait(); err != nil && !errors.Is(err, store.ErrFenced) {
				t.Errorf("a relay ended with %v", err)
			}
		}
		o.Drain = 5 * time.Second
		last := streaming(t, apart(t, db.DSN, o))
		eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
		last.shutDown()
		got := firsts(ids(sub.Calls()))
		if len(got) != written {
			t.Errorf("%d events were delivered, %d written", len(got), written)
		}
		newest := make(map[int]int)
		for _, id := range got {
			n, err := strconv.Atoi(id)
			if err != nil {
				t.Fatal(err)
			}
			if n < newest[n%keys] {
				t.Errorf("event %d came for the first time after %d of its key", n, newest[n%keys])
			}
			newest[n%keys] = n
		}
		t.Logf("%d events, %d deliveries, %d leaderships, %d repairs", written, len(sub.Calls()), db.Int(`SELECT term FROM walpost.leader`),
			db.Int(`SELECT count(*) FROM walpost.audit WHERE action = 'repair'`))
	}
}
