package store_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

// connect opens a session that ends with the test.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// stranger is a session of a role that may connect and nothing else.
func stranger(t *testing.T, db *testdb.DB) (conn *pgx.Conn, role string) {
	t.Helper()
	role = db.Name + "_stranger"
	db.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { db.Exec(`DROP ROLE ` + role) })
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	conn, err = pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn, role
}

func find(t *testing.T, db *testdb.DB) store.Leader {
	t.Helper()
	leader, err := store.FindLeader(t.Context(), db.Pinned, slot, false)
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

func mustElect(t *testing.T, conn *pgx.Conn, holder string, seen store.Leader) store.Key {
	t.Helper()
	key, err := store.Elect(t.Context(), conn, slot, holder, "", seen)
	if err != nil || key == 0 {
		t.Fatalf("%s is not elected: %v", holder, err)
	}
	return key
}

func TestElect_oneOfThoseThatHaveSeenTheSameWins(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := connect(t, db.DSN), connect(t, db.DSN)
	seen := find(t, db)
	key := mustElect(t, first, "first", seen)
	if _, err := store.Elect(t.Context(), second, slot, "second", "", seen); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("the second got %v, want ErrOvertaken", err)
	}
	leader := find(t, db)
	if leader.Holder != "first" || leader.Key != key || leader.PID != int(first.PgConn().PID()) {
		t.Errorf("the leader is %+v, want first with key %d and pid %d", leader, key, first.PgConn().PID())
	}
	if got := db.Int(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND locktype = 'advisory'`); got != 1 {
		t.Errorf("%d advisory locks are held, want that of the leader", got)
	}
	// What the second has seen now it may replace, and that once.
	mustElect(t, second, "second", leader)
	if _, err := store.Elect(t.Context(), first, slot, "first", "", leader); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("the first got %v, want ErrOvertaken", err)
	}
}

func TestElect_leadsOnUnderTheSameTermAfterTheLossOfASession(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	key := mustElect(t, connect(t, db.DSN), "us", find(t, db))
	before := find(t, db)
	standby := connect(t, db.DSN)
	again := mustElect(t, connect(t, db.DSN), "us", before)
	if after := find(t, db); after.Term != before.Term || again == key {
		t.Errorf("after the loss of its session the leader is %+v, want term %d and another key than %d", after, before.Term, key)
	}
	if _, err := store.Elect(t.Context(), standby, slot, "another", "", before); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("one that has seen the old session got %v, want ErrOvertaken", err)
	}
}

// S-65: a receiver refuses a term that is lower than one that it has seen.
func TestElect_raisesTheTermAfterARestoreToo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var last int64
	for _, restored := range []string{`SELECT 1`, `DELETE FROM walpost.leader`, `UPDATE walpost.leader SET term = 7`} {
		db.Exec(restored)
		for db.Int(`SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`) <= last { // the clock that the term is made of
		}
		mustElect(t, connect(t, db.DSN), restored, find(t, db))
		leader := find(t, db)
		if leader.Term <= last || leader.Term >= 1<<53 {
			t.Errorf("after %s: term %d, want one above %d and below 2^53", restored, leader.Term, last)
		}
		last = leader.Term
	}
	db.Exec(`UPDATE walpost.leader SET term = 8000000000000000`) // a clock that was far ahead
	mustElect(t, connect(t, db.DSN), "next", find(t, db))
	if got := find(t, db).Term; got != 8000000000000001 {
		t.Errorf("term %d, want one more than that of a clock that was ahead", got)
	}
}

// S-60: any role can take any advisory lock, and sees the keys.
func TestFindLeader_countsNoSessionOfAnotherRole(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	leader := connect(t, db.DSN)
	key := mustElect(t, leader, "us", find(t, db))
	other, role := stranger(t, db)
	awaits := make(chan error, 1)
	go func() {
		_, err := other.Exec(context.WithoutCancel(t.Context()), `SELECT pg_advisory_lock($1)`, key)
		awaits <- err
	}()
	strangers := func() (found []store.Stranger) {
		t.Helper()
		found, err := store.FindStrangers(t.Context(), db.Pinned, slot)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	pid := int(other.PgConn().PID())
	want := []store.Stranger{{PID: pid, Role: role}}
	for deadline := time.Now().Add(10 * time.Second); !slices.Equal(strangers(), want); {
		if time.Now().After(deadline) {
			t.Fatalf("strangers are %v, want the one that waits", strangers())
		}
	}
	if err := leader.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-awaits; err != nil {
		t.Fatal(err)
	}
	seen := find(t, db)
	if seen.PID != 0 || seen.Holder != "us" {
		t.Errorf("%+v counts as a leader that lives", seen)
	}
	mustElect(t, connect(t, db.DSN), "next", seen)
	want[0].Granted = true
	if got := strangers(); !slices.Equal(got, want) {
		t.Errorf("strangers are %v, want %v: it has the last leader's key", got, want)
	}
}

// S-60
func TestFindStrangers_namesWhoGuessesTheKeyAndNoneOfOurs(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	mustElect(t, connect(t, db.DSN), "us", find(t, db))
	other, role := stranger(t, db)
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('walpost/' || $1, 0)), pg_advisory_lock(1)`, slot); err != nil {
		t.Fatal(err)
	}
	got, err := store.FindStrangers(t.Context(), db.Pinned, slot)
	if want := []store.Stranger{{PID: int(other.PgConn().PID()), Role: role, Granted: true}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("strangers are %v, %v; want %v", got, err, want)
	}
}

func TestClaimReader_needsTheKeyAndThatNoOtherWasFaster(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	claim := func(holder string, seen, key store.Key) error {
		return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			return store.ClaimReader(t.Context(), tx, slot, holder, seen, key)
		})
	}
	reader := func() store.Reader {
		t.Helper()
		r, err := store.FindReader(t.Context(), db.Pinned, slot)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	session := connect(t, db.DSN)
	if _, err := session.Exec(t.Context(), `SELECT pg_advisory_lock(42)`); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		holder    string
		seen, key store.Key
	}{
		"a key that no session holds": {seen: 0, key: 43},
		"another one was faster":      {seen: 41, key: 42},
		"another one is elected":      {holder: "us", seen: 0, key: 42},
		"all of it at the same time":  {holder: "us", seen: 41, key: 43},
	} {
		if err := claim(c.holder, c.seen, c.key); !errors.Is(err, store.ErrOvertaken) {
			t.Errorf("%s: got %v, want ErrOvertaken", what, err)
		}
	}
	if err := claim("", 0, 42); err != nil {
		t.Fatal(err)
	}
	if got := reader(); got.Key != 42 || got.PID != int(session.PgConn().PID()) {
		t.Errorf("the reader is %+v, want pid %d with key 42", got, session.PgConn().PID())
	}
	fence := store.NewFence(slot)
	if err := fence.Lead(t.Context(), db.Pinned, "one that froze", 41, false); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("one whose claim is over gets the term: %v", err)
	}
	if err := fence.Lead(t.Context(), db.Pinned, "single", 42, false); err != nil {
		t.Error(err)
	}
}

// S-431: a standby sends those who ask it to the address that the leader has written.
func TestElect_recordsWhereTheLeaderAnswers(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	address := func() string {
		holder, address, err := store.LeaderAddress(t.Context(), db.Pinned, slot)
		if err != nil {
			t.Fatal(err)
		}
		return holder + " " + address
	}
	if got := address(); got != " " {
		t.Errorf("before the first leader: %q", got)
	}
	for _, step := range []struct{ holder, address string }{{"first", "10.0.0.1:8081"}, {"second", ""}, {"third", "[::1]:8081"}} {
		if _, err := store.Elect(t.Context(), connect(t, db.DSN), slot, step.holder, step.address, find(t, db)); err != nil {
			t.Fatal(err)
		}
		if got, want := address(), step.holder+" "+step.address; got != want {
			t.Errorf("the leader answers at %q, want %q", got, want)
		}
	}
}
