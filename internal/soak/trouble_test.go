//go:build soak

package soak

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Rounds of random trouble: in each some of everything that can go wrong happens at the same time, under load. What
// committed is noted in a table of its own, in the transaction of the event, because the outbox is truncated and its
// ids are used again: an event is its id and the time of its row.

const troubleTables = `
	CREATE TABLE soak.committed (seq bigserial PRIMARY KEY, event_id text NOT NULL, created_at timestamptz NOT NULL, event_type text NOT NULL, key text NOT NULL);
	CREATE SEQUENCE soak.ids;
	CREATE TABLE soak.keys AS SELECT 'key-' || n AS key FROM generate_series(1, 20) n;
	CREATE TABLE soak.byhand (subscriber text NOT NULL, event_id text NOT NULL, occurrence text NOT NULL, discarded boolean NOT NULL);
	CREATE TABLE soak.narrowed (subscriber text NOT NULL, last bigint NOT NULL, first bigint NOT NULL DEFAULT 9223372036854775807);
	CREATE TABLE extra (LIKE outbox INCLUDING ALL);
	CREATE FUNCTION soak.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'refused as told'; END$$`

// insertTrouble locks the key first, so that within a key the order of seq and id is that of the commits.
const insertTrouble = `
	WITH locked AS MATERIALIZED (SELECT key FROM soak.keys WHERE key = $1 FOR UPDATE),
	new AS (
		INSERT INTO outbox (event_id, event_type, partition_key, payload, created_at)
		SELECT 'e' || nextval('soak.ids'), $2, key, '{}', clock_timestamp() FROM locked
		RETURNING event_id, created_at, event_type, partition_key)
	INSERT INTO soak.committed (event_id, created_at, event_type, key) SELECT * FROM new`

// notAsked is a condition: the event c is none of those that the subscriber $1 must have had, because its filter was
// narrowed after the event soak.narrowed.last and not known to be wide again before the event first. What other types
// than soak.rare commits one after the other, so that for them the order of seq is that of the commits.
const notAsked = `(c.event_type <> 'soak.rare' AND EXISTS (SELECT FROM soak.narrowed f WHERE f.subscriber = $1 AND c.seq > f.last AND c.seq < f.first))`

// troubles is one run.
type troubles struct {
	*rand.Rand
	t       *testing.T
	db      *testdb.DB
	relay   *testprogram.Process
	pooler  *wire             // by which the relay reaches the database; the stream goes by itself
	names   []string          // in the configuration
	joined  []string          // of them those that began with all rows, and want rare events only
	narrow  map[string]bool   // they want rare events only, for now
	former  map[string]string // names of those that have another one now
	paused  map[string]bool
	extra   bool        // a second source is in the configuration
	quiet   atomic.Bool // nothing is written at the moment
	left    map[string]int64
	counts  map[string]int
	command func(args ...string) string
}

func (r *troubles) options() relayOptions {
	sources := []string{"{name: lessons, table: public.outbox, mark: auto, rows: shared}"}
	if r.extra {
		sources = slices.Insert(sources, r.IntN(2), "{name: extra, table: public.extra, mark: auto, rows: shared}")
	}
	return relayOptions{
		top:         "wal_budget: 1MiB\nsources: [" + strings.Join(sources, ", ") + "]",
		databaseURL: r.pooler.dsn,
		subscribers: r.names,
		each:        "max_attempts: 4, stall_after: 1s, retry: {initial: 50ms, max: 500ms}, timeout: 2s",
		more: func(name string) string {
			more := ""
			if slices.Contains(r.joined, name) {
				more = `, from: beginning, events: ["soak.rare"]`
			} else if r.narrow[name] {
				more = `, events: ["soak.rare"]`
			}
			if former := r.former[name]; former != "" {
				more += ", renamed_from: " + former
			}
			return more
		},
	}
}

func (r *troubles) start() { r.relay = startLedgers(r.t, r.db, r.options()) }

func (r *troubles) restart() {
	r.relay.Kill()
	r.start()
}

func (r *troubles) some() string { return r.names[r.IntN(len(r.names))] }

// ways are what can happen in a round.
func (r *troubles) ways() map[string]func() {
	return map[string]func(){
		"kill": func() { r.restart() },
		"stop": func() { r.relay.Stop(); r.start() },
		"cut": func() {
			r.db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walpost%' AND pid <> pg_backend_pid()`)
		},
		"lost slot": func() { dropSlot(r.t, r.db) },
		"another timeline": func() {
			r.relay.Kill()
			r.db.Exec(`UPDATE walpost.slots SET timeline = 77 WHERE slot = $1`, r.db.Name)
			r.start()
		},
		"takeover": func() {
			next := startLedgers(r.t, r.db, r.options())
			testprogram.Pause(r.t, time.Duration(r.Int64N(int64(2*time.Second))))
			r.relay.Kill()
			r.relay = next
		},
		"frozen sender": func() {
			r.freeze(int(r.db.Int(`SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()`)), 3*time.Second)
		},
		"frozen relay": func() { r.freeze(r.relay.PID(), 6*time.Second) },
		"dead pooler": func() {
			if !r.pooler.isCut() {
				r.pooler.cut()
				time.AfterFunc(time.Duration(r.Int64N(int64(5*time.Second))), r.pooler.restore)
			}
		},
		"sources": func() {
			r.relay.Kill()
			r.extra = !r.extra
			r.db.Exec(`INSERT INTO extra (event_id, event_type, partition_key, payload) SELECT 'x' || nextval('soak.ids'), 'soak.extra', 'key-1', '{}'`)
			r.Shuffle(len(r.names), func(i, j int) { r.names[i], r.names[j] = r.names[j], r.names[i] })
			r.start()
		},
		"another name":   r.rename,
		"another filter": r.narrowOrWiden,
		"pause": func() {
			name := r.some()
			r.paused[name] = true
			r.command("subscribers", "pause", name, "--why=trouble")
		},
		"open transaction": func() {
			key, wait := "key-"+strconv.Itoa(1+r.IntN(20)), time.Duration(r.Int64N(int64(time.Second)))
			go func() { // it has written before a repair begins, perhaps, and commits after it
				_ = pgx.BeginFunc(context.Background(), r.db.Pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(context.Background(), insertTrouble, key, "soak.rare")
					time.Sleep(wait)
					return err
				})
			}()
		},
		"refused marks": func() {
			wait := r.Float64()
			go func() {
				_, _ = r.db.Pool.Exec(context.Background(), `CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION soak.refuse()`)
				_, _ = r.db.Pool.Exec(context.Background(), `SELECT pg_sleep($1)`, wait)
				_, _ = r.db.Pool.Exec(context.Background(), `DROP TRIGGER IF EXISTS refuse ON outbox`)
			}()
		},
		"forged position": func() {
			r.db.Exec(`UPDATE walpost.subscribers SET secured_commit = 'FFFF/0' WHERE slot = $1 AND name = $2`, r.db.Name, r.some())
			r.restart()
		},
		"ids again": r.truncate,
		"moods": func() {
			behave(r.db, r.some(), []string{"down", "hang", "slow 300ms", "refuse key-" + strconv.Itoa(1+r.IntN(20)), "ok"}[r.IntN(5)])
		},
		"all well": r.allWell,
		"newcomer": func() {
			if len(r.joined) < 3 {
				name := fmt.Sprintf("late%d", len(r.joined))
				behave(r.db, name, "ok")
				r.names, r.joined = append(r.names, name), append(r.joined, name)
				r.restart()
			}
		},
		"leaver": func() {
			if i := slices.Index(r.names, "leaver"); i >= 0 && r.IntN(3) == 0 {
				r.relay.Kill()
				r.names = slices.Delete(slices.Clone(r.names), i, i+1)
				// What committed by now was committed before it left; what the writers commit meanwhile is not asked for.
				r.left["leaver"] = r.db.Int(`SELECT coalesce(max(seq), 0) FROM soak.committed`)
				r.start()
			}
		},
		"owed add": func() {
			name := r.some()
			r.db.Exec(`WITH e AS (SELECT event_id, created_at FROM outbox ORDER BY random() LIMIT 1)
				INSERT INTO soak.byhand SELECT $1, event_id, created_at::text, false FROM e`, name)
			if id := r.lastByHand(); id != "" {
				r.command("owed", "add", id, "--subscriber="+name, "--why=trouble")
			}
		},
		"redrive": func() { r.dead(r.some(), "redrive", false) },
		"discard": func() { r.dead(r.some(), "discard", true) },
		"replay": func() {
			r.command("replay", r.some(), "--since=1m", "--why=trouble", "--yes")
		},
		"locked rows": func() {
			seconds := 1 + r.IntN(3)
			go func() { // a session that looks at rows and takes its time
				_, _ = r.db.Pool.Exec(context.Background(), fmt.Sprintf(`
					WITH l AS MATERIALIZED (SELECT id FROM outbox WHERE published_at IS NULL LIMIT 50 FOR UPDATE SKIP LOCKED)
					SELECT pg_sleep(%d), count(*) FROM l`, seconds))
			}()
		},
	}
}

func (r *troubles) allWell() {
	for _, name := range r.names {
		behave(r.db, name, "ok")
		if r.paused[name] {
			r.command("subscribers", "resume", name, "--why=trouble")
			delete(r.paused, name)
		}
	}
}

// freeze stops a process for a while, as a machine does that hangs.
func (r *troubles) freeze(pid int, most time.Duration) {
	if pid == 0 || syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return
	}
	time.AfterFunc(time.Duration(r.Int64N(int64(most))), func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// rename gives a subscriber another name, and its ledger, too.
func (r *troubles) rename() {
	before := r.some()
	if before == "leaver" {
		return
	}
	r.relay.Kill()
	name := fmt.Sprintf("%s-%d", before, r.counts["another name"])
	for _, table := range []string{"ledger", "control", "byhand", "narrowed"} {
		r.db.Exec(`UPDATE soak.`+table+` SET subscriber = $2 WHERE subscriber = $1`, before, name)
	}
	for _, names := range [][]string{r.names, r.joined} {
		if i := slices.Index(names, before); i >= 0 {
			names[i] = name
		}
	}
	r.former[name], r.paused[name], r.narrow[name] = before, r.paused[before], r.narrow[before]
	delete(r.former, before)
	r.start()
	r.relay.AwaitStreaming() // else the next name would be that of one that the slot does not know
}

// narrowOrWiden gives a subscriber another filter between a kill and the next start. What committed before the kill is
// for it by the former one.
func (r *troubles) narrowOrWiden() {
	name := r.some()
	if slices.Contains(r.joined, name) {
		return
	}
	r.relay.Kill()
	r.narrow[name] = !r.narrow[name]
	if r.narrow[name] {
		r.db.Exec(`INSERT INTO soak.narrowed (subscriber, last) SELECT $1, coalesce(max(seq), 0) FROM soak.committed`, name)
	}
	r.start()
	if !r.narrow[name] {
		r.relay.AwaitStreaming() // what commits from now on it must have
		r.db.Exec(`UPDATE soak.narrowed SET first = 2 + (SELECT coalesce(max(seq), 0) FROM soak.committed) WHERE subscriber = $1 AND first = 9223372036854775807`, name)
	}
}

func (r *troubles) lastByHand() string {
	return r.db.Text(`SELECT coalesce((SELECT event_id FROM soak.byhand ORDER BY ctid DESC LIMIT 1), '')`)
}

// dead lets a person redrive or discard the oldest dead letter of a subscriber, and notes it: a later event of its key
// may have come before it.
func (r *troubles) dead(name, what string, discarded bool) {
	if r.noteDead(name, discarded, 1) > 0 {
		r.command("owed", what, r.lastByHand(), "--subscriber="+name, "--state=dead", "--why=trouble", "--yes")
	}
}

// redriveAll is dead for all dead letters of a subscriber.
func (r *troubles) redriveAll(name string) {
	if r.noteDead(name, false, math.MaxInt32) > 0 {
		r.command("owed", "redrive", "--subscriber="+name, "--state=dead", "--why=trouble", "--yes")
	}
}

// noteDead notes the oldest dead letters of a subscriber, up to so many, and returns their number.
func (r *troubles) noteDead(name string, discarded bool, most int) int64 {
	before := r.db.Int(`SELECT count(*) FROM soak.byhand`)
	r.db.Exec(`INSERT INTO soak.byhand
		SELECT subscriber, event_id, occurrence, $2 FROM walpost.owed WHERE state = 'dead' AND subscriber = $1 ORDER BY commit_lsn, ordinal LIMIT $3`, name, discarded, most)
	return r.db.Int(`SELECT count(*) FROM soak.byhand`) - before
}

// truncate empties the outbox and lets its ids begin again, once each row was had by each subscriber or is owed to it:
// else it would be the person who truncates that loses the event.
func (r *troubles) truncate() {
	r.quiet.Store(true) // in safe mode a busy machine would never catch up
	defer r.quiet.Store(false)
	r.allWell()
	var names, kinds []string
	var lasts []int64 // seq of the last event that is for them
	for _, name := range r.names {
		kind := "%"
		if slices.Contains(r.joined, name) {
			kind = "soak.rare"
		}
		names, lasts, kinds = append(names, name), append(lasts, math.MaxInt64), append(kinds, kind)
	}
	for name, last := range r.left {
		names, lasts, kinds = append(names, name), append(lasts, last), append(kinds, "%")
	}
	testprogram.Within(r.t, 2*time.Minute, "the outbox to be had by all", func() bool {
		tx, err := r.db.Pool.Begin(r.t.Context())
		if err != nil {
			return false
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		var open int64
		if _, err := tx.Exec(r.t.Context(), `LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`); err != nil {
			return false
		}
		err = tx.QueryRow(r.t.Context(), `
			SELECT count(*) FROM outbox o JOIN soak.committed c ON c.event_id = o.event_id AND c.created_at = o.created_at
			CROSS JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS s (name, last, kind)
			WHERE o.published_at IS NULL AND c.seq <= s.last AND c.event_type LIKE s.kind AND NOT `+strings.ReplaceAll(notAsked, "$1", "s.name")+`
			AND NOT EXISTS (SELECT FROM soak.ledger l WHERE l.subscriber = s.name AND l.event_id = o.event_id AND l.occurrence::timestamptz = o.created_at)
			AND NOT EXISTS (
				SELECT FROM walpost.owed w WHERE w.subscriber = s.name AND w.event_id = o.event_id AND w.occurrence::timestamptz = o.created_at
				AND w.state <> 'paid')`, names, lasts, kinds).Scan(&open)
		if err != nil || open > 0 {
			return false
		}
		if _, err := tx.Exec(r.t.Context(), `TRUNCATE outbox RESTART IDENTITY`); err != nil {
			return false
		}
		if _, err := tx.Exec(r.t.Context(), `SELECT setval('soak.ids', 1, false)`); err != nil {
			return false
		}
		return tx.Commit(r.t.Context()) == nil
	})
}

func TestSoak_roundsOfRandomTroubleLoseNothing(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("WALPOST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d: WALPOST_SEED repeats the choices", seed)
	db := ownServer(t)
	r := &troubles{Rand: rand.New(rand.NewPCG(seed, 1)), t: t, db: db, pooler: newWire(t, db), names: []string{"one", "two", "leaver"},
		former: make(map[string]string), paused: make(map[string]bool), narrow: make(map[string]bool),
		left: make(map[string]int64), counts: make(map[string]int)}
	db.Exec(strings.ReplaceAll(ledgerTables, "UNLOGGED", ""))
	db.Exec(troubleTables)
	for _, name := range r.names {
		behave(db, name, "ok")
	}
	binary := testprogram.Binary(t)
	r.command = func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a replay goes on without who follows it
		defer cancel()
		command := exec.CommandContext(ctx, binary, append(args, "--slot="+db.Name)...)
		command.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+db.DSN)
		out, _ := command.CombinedOutput() // that nothing is found is an answer, too
		return string(out)
	}
	r.start()
	r.relay.AwaitStreaming()
	var written atomic.Int64
	stop := until(func(ctx context.Context) {
		random := rand.New(rand.NewPCG(seed, 2))
		every(ctx, 10*time.Millisecond, func() {
			if r.quiet.Load() {
				return
			}
			kind := []string{"soak.written", "soak.rare"}[random.IntN(5)/4]
			if _, err := db.Pool.Exec(ctx, insertTrouble, "key-"+strconv.Itoa(1+random.IntN(20)), kind); err == nil {
				written.Add(1)
			}
		})
	})
	defer stop()
	ways := r.ways()
	var names []string
	for name := range ways {
		names = append(names, name)
	}
	slices.Sort(names)
	n := rounds(t, 100)
	for range n {
		for range 1 + r.IntN(4) {
			what := names[r.IntN(len(names))]
			r.counts[what]++
			ways[what]()
			testprogram.Pause(t, time.Duration(r.Int64N(int64(700*time.Millisecond))))
		}
	}
	stop()
	r.allWell()
	db.Exec(`DROP TRIGGER IF EXISTS refuse ON outbox`)
	for _, name := range r.names { // to one that has left no relay would send
		testprogram.Within(t, 2*time.Minute, "no dead letter of "+name+" to be left", func() bool {
			r.redriveAll(name) // one by one would take minutes on a busy machine
			return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead' AND subscriber = $1`, name) == 0
		})
	}
	testprogram.Within(t, 3*time.Minute, "everything to be had", func() bool { return r.unpublished() == 0 })
	r.relay.Stop()
	r.compare()
	dropSlot(t, db)
	before := db.Int(`SELECT count(*) FROM soak.ledger`)
	r.start()
	r.relay.AwaitStreaming()
	testprogram.Within(t, 3*time.Minute, "everything to be had after the slot was lost", func() bool { return r.unpublished() == 0 })
	r.relay.Stop()
	r.compare()
	t.Logf("%d rounds: %v; %d events, %d of the ids were used again, %d deliveries, %d again at the end", n, r.counts, written.Load(),
		db.Int(`SELECT count(*) - count(DISTINCT event_id) FROM soak.committed`), before, db.Int(`SELECT count(*) FROM soak.ledger`)-before)
}

// unpublished counts the rows that are neither marked nor owed to one that has left.
func (r *troubles) unpublished() int64 {
	return r.db.Int(`
		SELECT count(*) FROM outbox o WHERE published_at IS NULL AND NOT EXISTS (
			SELECT FROM walpost.owed w WHERE w.event_id = o.event_id AND w.occurrence::timestamptz = o.created_at AND w.state <> 'paid' AND NOT w.subscriber = ANY($1))`, r.names) +
		r.db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND subscriber = ANY($1)`, r.names)
}

// compare holds what each subscriber has had against what committed, and the marks against both.
func (r *troubles) compare() {
	r.t.Helper()
	check := func(what, sql string, args ...any) {
		if got := r.db.Int(sql, args...); got != 0 {
			r.t.Errorf("%d %s", got, what)
		}
	}
	const had = `EXISTS (SELECT FROM soak.ledger l WHERE l.subscriber = $1 AND l.event_id = c.event_id AND l.occurrence::timestamptz = c.created_at)
		OR EXISTS (SELECT FROM soak.byhand d WHERE d.subscriber = $1 AND d.event_id = c.event_id AND d.occurrence::timestamptz = c.created_at AND d.discarded)`
	const owed = `EXISTS (SELECT FROM walpost.owed w WHERE w.subscriber = $1 AND w.event_id = c.event_id AND w.occurrence::timestamptz = c.created_at AND w.state <> 'paid')`
	all := slices.Clone(r.names)
	if r.left["leaver"] > 0 {
		all = append(all, "leaver")
	}
	for _, name := range all {
		limit := int64(1 << 62)
		if last, ok := r.left[name]; ok {
			limit = last
		}
		if slices.Contains(r.joined, name) {
			// It began with the rows that the table had then; those that were truncated before are not for it.
			check(name+": rows of the table that it has not had", `
				SELECT count(*) FROM soak.committed c JOIN outbox o ON o.event_id = c.event_id AND o.created_at = c.created_at
				WHERE c.event_type = 'soak.rare' AND NOT (`+had+` OR `+owed+`)`, name)
			continue
		}
		check(name+": events that committed and that it neither had nor is owed",
			`SELECT count(*) FROM soak.committed c WHERE seq <= $2 AND NOT `+notAsked+` AND NOT (`+had+` OR `+owed+`)`, name, limit)
		check(name+": rows are marked that it has not had", `
			SELECT count(*) FROM outbox o JOIN soak.committed c ON o.event_id = c.event_id AND o.created_at = c.created_at
			WHERE published_at IS NOT NULL AND c.seq <= $2 AND NOT `+notAsked+` AND NOT (`+had+`)`, name, limit)
		check(name+": events that came for the first time behind a later one of their key, without a person's hand", `
			WITH came AS (
				SELECT c.seq, c.key, min(l.n) AS n FROM soak.ledger l
				JOIN soak.committed c ON c.event_id = l.event_id AND c.created_at = l.occurrence::timestamptz
				WHERE l.subscriber = $1 AND NOT `+notAsked+` AND NOT EXISTS (
					SELECT FROM soak.byhand h WHERE h.subscriber = $1 AND h.event_id = l.event_id AND h.occurrence::timestamptz = l.occurrence::timestamptz)
				GROUP BY 1, 2),
			pairs AS (SELECT seq, n, lag(n) OVER (PARTITION BY key ORDER BY seq) AS before FROM came)
			SELECT count(*) FROM pairs WHERE before > n`, name)
	}
}
