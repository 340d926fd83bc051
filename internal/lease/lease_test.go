package lease

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

// running is a lease whose Run has been started; it ends with the test.
func running(t *testing.T, db *testdb.DB, holder string) *Lease {
	t.Helper()
	l := New(Options{URL: db.DSN, Slot: db.Name, Log: slog.New(slog.DiscardHandler)})
	l.holder = holder
	ctx, cancel := context.WithCancel(context.Background())
	go l.Run(ctx)
	t.Cleanup(func() {
		cancel()
		<-l.left
	})
	return l
}

// leads waits until the lease is held, and returns how long it took.
func leads(t *testing.T, db *testdb.DB, l *Lease) time.Duration {
	t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := l.Await(ctx); err != nil {
		t.Fatalf("%s does not get the lease: %v (%s)", l.holder, err, l.State().Why)
	}
	if !l.Valid() {
		t.Errorf("%s holds a lease that is not valid", l.holder)
	}
	if got := db.Text(`SELECT holder FROM walpost.leader WHERE slot = $1`, db.Name); got != l.holder {
		t.Errorf("%q is recorded as the leader, want %q", got, l.holder)
	}
	return time.Since(begun)
}

// elsewhere is a holder on a machine that no one here can look at.
func elsewhere(name string) string { return name + "/1/ffffff/" + random() }

// changes waits until State says something else than held.
func changes(t *testing.T, l *Lease, held bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		state := l.State()
		if state.Held != held {
			return
		}
		select {
		case <-state.Changed:
		case <-limit:
			t.Fatalf("still held=%v (%s)", held, state.Why)
		}
	}
}

func TestLease_isHeldByOneAndGoesToTheNextAtOnceWhenItIsReleased(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first := running(t, db, elsewhere("first"))
	leads(t, db, first)
	second := running(t, db, elsewhere("second"))
	third := running(t, db, elsewhere("third"))
	for _, l := range []*Lease{second, third} { // until they say that another one leads
		for l.State().Why == "not asked yet" {
			runtime.Gosched()
		}
		if state := l.State(); state.Held || l.Valid() {
			t.Errorf("%s holds it too: %+v", l.holder, state)
		}
	}
	first.Release()
	if first.Valid() {
		t.Error("a released lease is valid")
	}
	got := make(chan *Lease, 2)
	for _, l := range []*Lease{second, third} {
		go func() {
			if l.Await(t.Context()) == nil {
				got <- l
			}
		}()
	}
	begun := time.Now()
	next := <-got
	leads(t, db, next)
	t.Logf("handed over after %v", time.Since(begun))
	if second.Valid() && third.Valid() {
		t.Error("two hold it")
	}
}

// F-45: a standby leaves the lock to a leader that has lost only its session, so nothing is interrupted.
func TestLease_outlivesItsSessionWhileAStandbyWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := running(t, db, elsewhere("leader"))
	leads(t, db, l)
	standby := running(t, db, elsewhere("standby"))
	for standby.State().Why == "not asked yet" {
		runtime.Gosched()
	}
	acquired := l.State().Acquired
	db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, l.Application())
	limit := time.After(30 * time.Second)
	for l.State().Acquired == acquired {
		state := l.State()
		if !state.Held {
			t.Fatalf("lost with its session: %s", state.Why)
		}
		select {
		case <-state.Changed:
		case <-limit:
			t.Fatal("no new session")
		}
	}
	if !l.Valid() || standby.State().Held {
		t.Errorf("the leader's lease is valid %v, the standby holds it %v; want all as it was", l.Valid(), standby.State().Held)
	}
}

func TestLease_endsByItsOwnClockWhenPostgresIsGone(t *testing.T) {
	t.Parallel()
	l := New(Options{Slot: "s"})
	l.begin(bootTime() - leaseTime + 50*time.Millisecond)
	if !l.Valid() {
		t.Fatal("not valid at first")
	}
	if !l.lose(errors.New("gone")) {
		t.Error("lost with the session")
	}
	changes(t, l, true)
	if l.Valid() {
		t.Error("valid after its time")
	}
	l.begin(bootTime())
	if !l.lose(errors.New("gone")) || !l.Valid() {
		t.Error("lost with a session although its time is not over: no other is elected before")
	}
}

// F-45: the lock is free as soon as the server has ended the session, but its holder may not have heard of it.
func TestLease_isTakenOnlyWhenTheLastHolderHasStoppedByItsOwnClock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.leader (slot, holder, term, key, role) VALUES ($1, $2, 7, 42, session_user)`, db.Name, elsewhere("cut-off"))
	begun := bootTime()
	leads(t, db, running(t, db, elsewhere("next")))
	if waited := bootTime() - begun; waited < leaseTime {
		t.Errorf("taken after %v, while the last holder may act for %v", waited, leaseTime)
	}
}

func TestLease_isTakenAtOnceFromWhoCannotActAnyMore(t *testing.T) {
	l := New(Options{Slot: "s"})
	host, pid := "host/", "/4194304/" // above the largest process id
	for what, test := range map[string]struct {
		before string
		key    store.Key
		want   bool
	}{
		"no one, or one that has left":         {before: "", want: false},
		"this process":                         {before: l.holder, key: 1, want: false},
		"a process of here that has died":      {before: host + pid[1:] + namespace() + "/abcdef", key: 1, want: false},
		"a process of here that lives":         {before: host + "1/" + namespace() + "/abcdef", key: 1, want: true},
		"a process of somewhere":               {before: host + pid[1:] + "ffffff/abcdef", key: 1, want: true},
		"a process that has given up the lead": {before: host + "1/ffffff/abcdef", key: 0, want: false},
	} {
		if got := l.mayAct(store.Leader{Holder: test.before, Key: test.key}); got != test.want {
			t.Errorf("%s: may act is %v, want %v", what, got, test.want)
		}
	}
}

func TestLease_endsASessionThatHasStoppedAsking(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	frozen := New(Options{URL: db.DSN, Slot: db.Name, Log: slog.New(slog.DiscardHandler)})
	frozen.holder = elsewhere("frozen")
	conn, err := frozen.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := frozen.stand(t.Context(), conn); err != nil { // is elected, and then nothing
		t.Fatal(err)
	}
	begun := bootTime()
	leads(t, db, running(t, db, elsewhere("next")))
	if waited := bootTime() - begun; waited < leaseTime {
		t.Errorf("taken after %v, want not before %v", waited, stale)
	}
	if _, err := conn.Exec(t.Context(), `SELECT 1`); err == nil {
		t.Error("the session of the frozen holder still answers")
	}
}

func TestLease_tellsWhenSomethingOfItsSlotWasChanged(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	told := make(chan struct{}, 10)
	l := New(Options{URL: db.DSN, Slot: db.Name, Log: slog.New(slog.DiscardHandler), Notified: func() { told <- struct{}{} }})
	ctx, cancel := context.WithCancel(t.Context())
	go l.Run(ctx)
	leads(t, db, l)
	<-told // it listens, and looks for what was changed before
	db.Exec(`SELECT pg_notify('walpost', 'another')`)
	db.Exec(`SELECT pg_notify('walpost', $1)`, db.Name)
	<-told
	cancel()
	<-l.left
	if len(told) != 0 {
		t.Error("told of another slot too")
	}
}

func TestApplication_fitsWhatPostgresKeeps(t *testing.T) {
	long := "a_slot_name_of_the_greatest_length_that_a_server_lets_one_choose"
	for _, slot := range []string{"walpost", long[:63]} {
		l := New(Options{Slot: slot})
		if got := l.Application(); len(got) > 63 {
			t.Errorf("%q has %d bytes, want at most 63", got, len(got))
		}
	}
}

func TestPauseAfter_growsToItsCapAndIsNeverTheSameForAll(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: heartbeat / 2, 1: heartbeat, 2: 2 * heartbeat, 3: longest, 1000: longest} {
		seen := map[time.Duration]bool{}
		for range 100 {
			got := pauseAfter(failures)
			if got < most/2 || got > most {
				t.Errorf("after %d failures: %v, want between %v and %v", failures, got, most/2, most)
			}
			seen[got] = true
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures: %d different waits of 100, want jitter", failures, len(seen))
		}
	}
}
