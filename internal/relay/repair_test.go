package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// slotLoss is what can become of a slot and of what it brings.
type slotLoss struct {
	spoil func(db *testdb.DB)
	kind  string // of the repair, "" for none
}

const (
	advance        = `SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`
	dropSlot       = `SELECT pg_drop_replication_slot($1)`
	makeSlot       = `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`
	makePublishing = `CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`
)

// F-06, F-10, F-15, F-27: whatever became of the slot or the publication while the relay was away, what
// committed meanwhile is delivered, in order, and the repair is told.
func TestRelay_repairsFromTheTableWhateverBecameOfItsSlot(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]slotLoss{
		"nothing": {func(*testdb.DB) {}, ""},
		"dropped": {func(db *testdb.DB) { db.Exec(dropSlot, db.Name) }, "again"},
		"dropped and made again by someone": {func(db *testdb.DB) {
			db.Exec(dropSlot, db.Name)
			insertAll(db, "a", numbered("between", 3))
			db.Exec(makeSlot, db.Name)
		}, "kept"},
		"moved on": {func(db *testdb.DB) { db.Exec(advance, db.Name) }, "kept"},
		"rewound":  {func(db *testdb.DB) { db.Exec(`UPDATE walpost.slots SET confirmed = pg_current_wal_lsn()`) }, ""},
		"publication made again": {func(db *testdb.DB) {
			db.Exec(`DROP PUBLICATION walpost`)
			insertAll(db, "a", numbered("between", 3))
			db.Exec(makePublishing)
		}, ""}, // which kind depends on the version: 18 goes on without it
		"publication dropped": {func(db *testdb.DB) { db.Exec(`DROP PUBLICATION walpost`) }, "again"},
		"table taken off and put back": {func(db *testdb.DB) {
			db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
			insertAll(db, "a", numbered("between", 3))
			db.Exec(`ALTER PUBLICATION walpost ADD TABLE outbox`)
		}, "kept"},
		"table taken off": {func(db *testdb.DB) {
			db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
			insertAll(db, "a", numbered("between", 3))
		}, "kept"},
		"table made again": {func(db *testdb.DB) {
			freshTable(db)
			db.Exec(`DROP TABLE outbox; ALTER TABLE fresh RENAME TO outbox`)
		}, "kept"},
		"another system":   {func(db *testdb.DB) { db.Exec(`UPDATE walpost.slots SET system_id = '1'`) }, "kept"},
		"another timeline": {func(db *testdb.DB) { db.Exec(`UPDATE walpost.slots SET timeline = 77`) }, "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			first := keeping(nil)
			r := streaming(t, options(t, db, first))
			insert(db, "before", "a")
			// A stop between the event and its commit leaves the transaction to come again, for a position in it to skip:
			// one that is worth nothing on another system.
			eventually(t, "the slot has passed it", passed(t, db, first.await(t, "before")))
			r.shutDown()
			if name != "table made again" {
				insertAll(db, "a", numbered("away", 3))
			}
			loss.spoil(db)
			insertAll(db, "a", numbered("later", 3))
			want := db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NULL ORDER BY id`)

			sub := subscribertest.Recording()
			o := options(t, db, sub)
			r = streaming(t, o)
			insertAll(db, "a", numbered("after", 3))
			want = append(want, numbered("after", 3)...)
			sub.AwaitDelivered(t, len(want))
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
			wantRepairs(t, db, o, loss.kind)
			r.shutDown()
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			if got := stillToCome(db); got != 0 {
				t.Errorf("after a clean stop the server would send %d rows again", got)
			}
		})
	}
}

// freshTable makes a table that can take the place of the outbox.
func freshTable(db *testdb.DB) {
	db.Exec(`CREATE TABLE fresh (LIKE outbox INCLUDING ALL); ALTER SEQUENCE outbox_id_seq OWNED BY fresh.id`)
}

// wantRepairs checks that one repair of a kind was counted and audited; "" says nothing of it.
func wantRepairs(t *testing.T, db *testdb.DB, o relay.Options, kind string) {
	t.Helper()
	if kind == "" {
		return
	}
	if got := metric(t, o, "walpost_repairs_total", "kind="+kind); got != 1 {
		t.Errorf("%v repairs of kind %q were counted, want 1", got, kind)
	}
	if got := db.Texts(`SELECT what ->> 'kind' FROM walpost.audit WHERE action = 'repair' AND why <> ''`); !slices.Equal(got, []string{kind}) {
		t.Errorf("the audit knows repairs %v, want one %q", got, kind)
	}
}

// F-10, F-13, F-27, F-53: the publication and its tables are changed under a relay that streams. It notices by
// itself, fixes what it can, and what was not streamed comes from the table.
func TestRelay_repairsWhatHappensToThePublicationWhileItStreams(t *testing.T) {
	t.Parallel()
	between := func(db *testdb.DB) { insertAll(db, "a", numbered("between", 3)) }
	for name, change := range map[string]func(db *testdb.DB){
		"table taken off and put back": func(db *testdb.DB) {
			db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
			between(db)
			db.Exec(`ALTER PUBLICATION walpost ADD TABLE outbox`)
		},
		"table taken off": func(db *testdb.DB) {
			db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
			between(db)
		},
		"table made again": func(db *testdb.DB) {
			freshTable(db)
			db.Exec(`DROP TABLE outbox; ALTER TABLE fresh RENAME TO outbox`)
			between(db)
		},
		"table swapped": func(db *testdb.DB) {
			freshTable(db)
			db.Exec(`ALTER TABLE outbox RENAME TO old; ALTER TABLE fresh RENAME TO outbox`)
			between(db)
		},
		"publication dropped":    func(db *testdb.DB) { db.Exec(`DROP PUBLICATION walpost`); between(db) },
		"publication made again": func(db *testdb.DB) { db.Exec(`DROP PUBLICATION walpost`); between(db); db.Exec(makePublishing) },
		"updates published as well": func(db *testdb.DB) {
			db.Exec(`ALTER PUBLICATION walpost SET (publish = 'insert, update')`)
			between(db)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := keeping(nil)
			o := options(t, db, sub)
			r := streaming(t, o)
			insert(db, "before", "a")
			eventually(t, "the slot has passed the event", passed(t, db, sub.await(t, "before")))
			change(db)
			eventually(t, "a repair", func() bool { return db.Int(`SELECT count(*) FROM walpost.audit WHERE action = 'repair'`) > 0 })
			insertAll(db, "a", numbered("after", 3))
			want := slices.Concat([]string{"before"}, numbered("between", 3), numbered("after", 3))
			sub.AwaitDelivered(t, len(want))
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
			eventually(t, "it is well", func() bool { return r.Health().Ready })
			once(t, sub, want)
		})
	}
}

// S-310: what a row filter leaves out reaches no one and is owed to no one, so the relay stops at the filter and names it,
// at its start and while it streams; without the filter, what was left out is sent.
func TestRelay_stopsAtARowFilterAndSendsWhatItLeftOut(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"while it streams": true, "at its start": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < 15 {
				return // knows no row filters
			}
			sub := keeping(nil)
			r := streaming(t, options(t, db, sub))
			insert(db, "before", "a")
			eventually(t, "the slot has passed the event", passed(t, db, sub.await(t, "before")))
			if !streams {
				r.stop()
			}
			db.Exec(`ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_id <> 'left-out')`)
			if !streams {
				r = start(t, options(t, db, sub))
			}
			wantWords(t, r.refused(), `"outbox"`, "(event_id)::text <> 'left-out'::text", "row filter")
			insert(db, "left-out", "a")
			insert(db, "after", "a")
			db.Exec(`ALTER PUBLICATION walpost SET TABLE outbox`)
			r = streaming(t, options(t, db, sub))
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			eventually(t, "it is well", func() bool { return r.Health().Ready })
			once(t, sub, []string{"before", "left-out", "after"})
		})
	}
}

// F-10: a table that is gone for a while is told, and no reason to give up.
func TestRelay_tellsThatATableIsGoneAndGoesOnWhenItIsBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	freshTable(db)
	db.Exec(`DROP TABLE outbox`)
	eventually(t, "it is not well", func() bool {
		h := r.Health()
		return !h.Ready && slices.ContainsFunc(h.Problems, func(p string) bool { return len(p) > 0 })
	})
	wantWords(t, fmt.Errorf("%v", r.Health().Problems), "table is gone", "public.outbox")
	db.Exec(`ALTER TABLE fresh RENAME TO outbox`)
	insert(db, "again", "a")
	sub.await(t, "again")
	eventually(t, "it is well", func() bool { return r.Health().Ready })
}

// partitionByID makes the outbox again as a partitioned table, with a partition for ids below 100.
func partitionByID(db *testdb.DB) {
	db.Exec(`DROP TABLE outbox`)
	db.Exec(`CREATE TABLE outbox (id bigint, event_id text, event_type text, partition_key text, payload jsonb, published_at timestamptz, PRIMARY KEY (id)) PARTITION BY RANGE (id)`)
	db.Exec(`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (100)`)
}

// F-13: a partition that is attached brings rows that were never streamed; one that is made empty needs no
// repair.
func TestRelay_sendsTheRowsOfAPartitionThatIsAttached(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	partitionByID(db)
	db.Exec(`CREATE TABLE loose (LIKE outbox INCLUDING ALL)`)
	row := func(table, id string, n int) {
		db.Exec(`INSERT INTO `+table+` (id, event_id, event_type, partition_key, payload) VALUES ($1, $2, 'x', 'a', '{}')`, n, id)
	}
	sub := keeping(nil)
	streaming(t, options(t, db, sub))
	row("outbox", "first", 1)
	sub.await(t, "first")
	db.Exec(`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (100) TO (200)`)
	row("outbox", "second", 100)
	sub.await(t, "second")
	row("loose", "attached", 200)
	db.Exec(`ALTER TABLE outbox ATTACH PARTITION loose FOR VALUES FROM (200) TO (300)`)
	sub.await(t, "attached")
	row("outbox", "third", 201)
	sub.await(t, "third")
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	db.Exec(`ALTER TABLE outbox DETACH PARTITION outbox_1`)
	row("outbox", "last", 202)
	sub.await(t, "last")
	once(t, sub, []string{"first", "second", "attached", "third", "last"})
	if got := db.Int(`SELECT count(*) FROM walpost.audit WHERE action = 'repair'`); got != 1 {
		t.Errorf("%d repairs, want one for the rows that came with a partition", got)
	}
}

// S-490: a partition that is taken off, loaded and attached again is the same partition, and no stream has the rows that it
// got meanwhile; whether that is over between two looks of the relay, or happens while none runs.
func TestRelay_sendsTheRowsOfAPartitionThatIsAttachedAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	partitionByID(db)
	load := func(id string, n int) { // the server takes several statements as one transaction
		db.Exec(`ALTER TABLE outbox DETACH PARTITION outbox_1;
			INSERT INTO outbox_1 (id, event_id, event_type, partition_key, payload) VALUES (` + fmt.Sprint(n) + `, '` + id + `', 'x', 'a', '{}');
			ALTER TABLE outbox ATTACH PARTITION outbox_1 FOR VALUES FROM (0) TO (100)`)
	}
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload) VALUES (1, 'streamed', 'x', 'a', '{}')`)
	sub.await(t, "streamed")
	eventually(t, "the mark", func() bool { return unmarked(db) == 0 })
	load("quick", 2)
	sub.await(t, "quick")
	eventually(t, "the mark", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	load("away", 3)
	streaming(t, options(t, db, sub))
	sub.await(t, "away")
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, sub, []string{"streamed", "quick", "away"})
}

// S-491: a SELECT from a table has the rows of those that inherit from it, and its stream has not. The relay says so while
// it runs, and does not start.
func TestRelay_refusesATableThatOthersInheritFrom(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	db.Exec(`CREATE TABLE outbox_2027 (PRIMARY KEY (id)) INHERITS (outbox)`)
	eventually(t, "it says so", func() bool {
		h := r.Health()
		return !h.Ready && strings.Contains(strings.Join(h.Problems, ";"), `"public"."outbox_2027" inherits from`)
	})
	insert(db, "still", "a")
	sub.await(t, "still")
	db.Exec(`ALTER TABLE outbox_2027 NO INHERIT outbox`)
	eventually(t, "it is well again", func() bool { return r.Health().Ready })
	db.Exec(`ALTER TABLE outbox_2027 INHERIT outbox`)
	r.shutDown()
	wantWords(t, start(t, options(t, db, sub)).wait(), "inherits from", "NO INHERIT")
}

// S-495: rows of an unlogged partition are in no WAL. The relay says so while it runs, and sends them when the partition is
// logged again.
func TestRelay_saysThatAPartitionIsUnlogged(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	partitionByID(db)
	db.Exec(`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (100) TO (200)`)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	db.Exec(`ALTER TABLE outbox_1 SET UNLOGGED`)
	eventually(t, "it says so", func() bool {
		return strings.Contains(strings.Join(r.Health().Problems, ";"), `"public"."outbox_1" is unlogged`)
	})
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload) VALUES (1, 'unlogged', 'x', 'a', '{}'), (101, 'logged', 'x', 'a', '{}')`)
	sub.await(t, "logged")
	db.Exec(`ALTER TABLE outbox_1 SET LOGGED`)
	sub.await(t, "unlogged")
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	eventually(t, "it is well again", func() bool { return r.Health().Ready })
}

// S-496: the rows of a partition come under the name of its root where the publication carries that.
func TestRelay_refusesAPartitionWhoseRootIsPublished(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	partitionByID(db)
	streaming(t, options(t, db, keeping(nil))).shutDown()
	o := options(t, db, keeping(nil))
	o.Sources = []*outbox.Source{{Name: "leaf", Schema: "public", Table: "outbox_1", Mark: true}}
	wantWords(t, start(t, o).wait(), "public.outbox_1 is a partition of public.outbox", "out of the publication")
	db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
	sub := keeping(nil)
	o = options(t, db, sub)
	o.Sources = []*outbox.Source{{Name: "leaf", Schema: "public", Table: "outbox_1", Mark: true}}
	streaming(t, o)
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload) VALUES (1, 'first', 'x', 'a', '{}')`)
	sub.await(t, "first")
}

// F-35: the server gives the slot up while the relay streams: handlers end, and the rest comes from the table.
func TestRelay_repairsASlotThatIsInvalidatedWhileItStreams(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, smallWAL))
	handle, release := blockingOne("open")
	defer release()
	sub := keeping(handle)
	o := options(t, db, sub)
	o.WALBudget = relay.Unlimited
	o.Subscriptions[0].Lane.Timeout = time.Minute
	r := streaming(t, o)
	insert(db, "open", "open")
	sub.await(t, "open")
	insertAll(db, "open", numbered("behind", 3))
	insertAll(db, "a", numbered("apart", 3))
	sub.AwaitDelivered(t, 3)
	invalidate(db)
	eventually(t, "the relay notices", func() bool { return r.Health().State == relay.Repairing })
	insertAll(db, "open", numbered("meanwhile", 3))
	release()
	sub.AwaitDelivered(t, 10)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	wantRepairs(t, db, o, "again")
	once(t, sub, slices.Concat([]string{"open"}, numbered("behind", 3), numbered("apart", 3), numbered("meanwhile", 3)))
}

// F-35: the server has given the slot up while no relay ran: it was too far behind or, from 18 on, idle for too
// long.
func TestRelay_repairsASlotThatWasLostWhileItWasAway(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, smallWAL))
	ways := map[string]func(){"too far behind": func() { invalidate(db) }}
	if major(db) >= 18 {
		ways["idle"] = func() {
			db.Exec(`ALTER SYSTEM SET idle_replication_slot_timeout = '1s'`)
			db.Exec(`SELECT pg_reload_conf()`)
			eventually(t, "a checkpoint takes the slot away", func() bool {
				db.Exec(`CHECKPOINT`)
				return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND to_jsonb(pg_replication_slots)->>'invalidation_reason' = 'idle_timeout'`, db.Name) == 1
			})
			db.Exec(`ALTER SYSTEM RESET idle_replication_slot_timeout`)
			db.Exec(`SELECT pg_reload_conf()`)
		}
	}
	for name, lose := range ways {
		sub := subscribertest.Recording()
		streaming(t, options(t, db, sub)).shutDown()
		db.Exec(`DELETE FROM walpost.audit`)
		insertAll(db, "a", numbered(name, 3))
		lose()
		o := options(t, db, sub)
		r := streaming(t, o)
		insert(db, name+" after", "a")
		if got, want := sub.AwaitDelivered(t, 4), append(numbered(name, 3), name+" after"); !slices.Equal(got, want) {
			t.Errorf("%s: delivered %v, want %v", name, got, want)
		}
		wantRepairs(t, db, o, "again")
		r.shutDown()
	}
}

// smallWAL lets a slot be lost after a few segments.
var smallWAL = map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "48MB", "wal_keep_size": "0"}

// invalidate writes WAL until the slot is lost.
func invalidate(db *testdb.DB) {
	for db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND wal_status = 'lost'`, db.Name) == 0 {
		db.Exec(`SELECT pg_logical_emit_message(false, 'junk', 'x')`)
		db.Exec(`SELECT pg_switch_wal()`)
		db.Exec(`CHECKPOINT`)
	}
}

// F-17, F-36, S-75: a transaction with a lower id is still open when the slot is lost, or when the repair looks.
func TestRelay_missesNoLateCommitInARepair(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]string{"again": dropSlot, "kept": advance} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, testdb.NewServer(t, nil)) // open transactions would hold the others' slots up
			streaming(t, options(t, db, subscribertest.Recording())).shutDown()
			commit := early(t, db, "late")
			insert(db, "higher", "b")
			db.Exec(loss, db.Name)
			sub := keeping(nil)
			o, log := logged(t, options(t, db, sub))
			r := start(t, o)
			eventually(t, "who is waited for", func() bool {
				return strings.Contains(log.String(), "waits for running transactions to end") && strings.Contains(log.String(), "oldest=\"pid ")
			})
			if problems := strings.Join(r.Health().Problems, "\n"); !strings.Contains(problems, "the oldest is pid ") {
				t.Errorf("/ready has %q, want who is waited for", problems)
			}
			insert(db, "meanwhile", "b")
			commit()
			sub.AwaitDelivered(t, 3)
			r.awaitStreaming()
			eventually(t, "nothing is waited for", func() bool { return len(r.Health().Problems) == 0 })
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			once(t, sub, []string{"late", "higher", "meanwhile"})
		})
	}
}

// F-36: while a repair or a creation waits for an old transaction, a stop is obeyed at once and leaves no slot that
// waits for no one.
func TestRelay_stopsWhileItWaitsForOldTransactions(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil))
	commit := early(t, db, "early")
	defer commit()
	r := start(t, options(t, db, subscribertest.Recording()))
	eventually(t, "a creation that waits", func() bool {
		return db.Int(`SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock'`) > 0
	})
	begun := time.Now()
	r.shutDown()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	eventually(t, "no half-made slot", func() bool { return db.Int(`SELECT count(*) FROM pg_replication_slots`) == 0 })
}

// on_lost_slot: stop
func TestRelay_stopsWithWordsInsteadOfARepairIfItIsTold(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]string{"again": dropSlot, "kept": advance} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			streaming(t, options(t, db, subscribertest.Recording())).shutDown()
			insertAll(db, "a", numbered("missing", 2))
			db.Exec(loss, db.Name)
			sub := subscribertest.Recording()
			o := options(t, db, sub)
			o.StopOnLostSlot = true
			wantWords(t, start(t, o).refused(), "may be missing", "unpublished: 2", "--on-lost-slot=repair")
			o = options(t, db, sub)
			streaming(t, o)
			if got := sub.AwaitDelivered(t, 2); !slices.Equal(got, numbered("missing", 2)) {
				t.Errorf("delivered %v after the advice was followed", got)
			}
		})
	}
}

// A source that is not marked: no one knows which of its rows were delivered.
func TestRelay_asksBeforeItSendsAllRowsOfASourceWithoutMarks(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	source := lessons()
	source.Mark = false
	sub := subscribertest.Recording()
	r := streaming(t, oneSource(options(t, db, sub), source))
	insertAll(db, "a", numbered("e", 3))
	sub.AwaitDelivered(t, 3)
	r.shutDown()
	db.Exec(dropSlot, db.Name)
	refused := start(t, oneSource(options(t, db, subscribertest.Recording()), source)).refused()
	wantWords(t, refused, `source "lessons"`, "repair: all", "DELETE FROM walpost.slots")
	wantNoSlot(t, db)

	all := lessons()
	all.Mark, all.RepairAll = false, true
	sub = subscribertest.Recording()
	streaming(t, oneSource(options(t, db, sub), all))
	if got := sub.AwaitDelivered(t, 3); !slices.Equal(got, numbered("e", 3)) {
		t.Errorf("delivered %v, want all rows again", got)
	}
}

// A slot that a DBA has prepared is used and never dropped.
func TestRelay_adoptsASlotThatSomeonePrepared(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, smallWAL))
	insert(db, "before", "a")
	db.Exec(makePublishing)
	db.Exec(makeSlot, db.Name)
	insert(db, "since", "a")
	sub := subscribertest.Recording()
	r := streaming(t, options(t, db, sub))
	insert(db, "after", "a")
	if got, want := sub.AwaitDelivered(t, 3), []string{"before", "since", "after"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	once(t, sub, []string{"before", "since", "after"})

	insert(db, "lost", "a")
	invalidate(db)
	again := subscribertest.Recording()
	refused := start(t, options(t, db, again)).refused()
	wantWords(t, refused, "did not make it", "pg_drop_replication_slot", "pg_create_logical_replication_slot")
	if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'lost'`); got != 1 {
		t.Errorf("%d lost slots, want the one that is not ours to drop", got)
	}
	db.Exec(dropSlot, db.Name)
	db.Exec(makeSlot, db.Name)
	streaming(t, options(t, db, again))
	if got := again.AwaitDelivered(t, 1); got[0] != "lost" {
		t.Errorf("delivered %v after the advice was followed", got)
	}
}

// Rows that no subscriber wants are marked with the others: no delivery would ever do that.
func TestRelay_marksRowsThatWaitedForNoOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('unwanted', 'other.type', 'a', '{}')`)
	insert(db, "wanted", "a")
	sub := subscribertest.Recording().Wanting("lesson.completed")
	streaming(t, options(t, db, sub))
	sub.AwaitDelivered(t, 1)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, sub, []string{"wanted"})
}

// A long debt and dead letters of one subscriber outlive a repair as they are.
func TestRelay_keepsDebtAndDeadLettersInARepair(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]string{"again": dropSlot, "kept": advance} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			o := owing(options(t, db, newChanging("down", away)))
			r := streaming(t, o)
			insertAll(db, "a", numbered("owed", 3))
			awaitOwed(t, db, "down", 3)
			r.shutDown()
			db.Exec(`UPDATE walpost.owed SET state = 'dead' WHERE event_id = 'owed-1'`)
			insertAll(db, "a", numbered("away", 3))
			db.Exec(loss, db.Name)
			sub := newChanging("down", taking)
			o = options(t, db, sub)
			o.Subscriptions[0].Lane.Ordering = lane.ByKey
			streaming(t, o)
			want := append([]string{"owed-0", "owed-2"}, numbered("away", 3)...)
			if got := sub.AwaitDelivered(t, 5); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			if got := owed(db, "down", "dead"); got != 1 {
				t.Errorf("%d dead letters, want the one there was", got)
			}
		})
	}
}
