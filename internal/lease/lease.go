// Package lease lets one of several relays lead a slot, and hands the lead over when that one dies, freezes
// or is cut off. The lease is an advisory lock of a session of its own with a heartbeat (docs/postgres.md §8): it
// writes nothing. It knows nothing about events; that no statement of an old leadership comes after one of
// the new is the business of debt.Fence, and who stops and resumes what is package relay.
package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

const (
	// heartbeat is how often the leader asks something of its session, and how often a standby looks.
	heartbeat = time.Second
	// term is how long after it sent the last heartbeat that was answered the leader may act.
	term = 3 * time.Second
	// stale is for how long a holder's session must have asked nothing for a standby to end it. It is more
	// than term: by then the holder has stopped by its own clock.
	stale = 4 * time.Second
	// hurry is how often a standby looks while the holder is late.
	hurry = 200 * time.Millisecond
	// longest is the longest wait between two attempts to get a session. A standby is useless without one, so
	// it is short; and long enough for a server that refuses everybody.
	longest = 4 * time.Second
	// connectLimit bounds an attempt to connect, and each statement of a takeover.
	connectLimit = 5 * time.Second
)

// Options are what a lease is made of.
type Options struct {
	// URL is a direct connection string: a pooler cannot carry a session's lock.
	URL  string
	Slot string
	// Notified is called when somebody has told the channel "walpost" of the slot: a person has changed
	// something. It must not block; nil is nobody.
	Notified func()
	Log      *slog.Logger
}

// Lease is held by at most one process of a slot. Its methods may be called by any goroutine; Run once.
//
// Invariant: it is held no longer than term after the last heartbeat that was answered was sent, and nobody
// else takes a lock that has not been free for as long. So a session that is lost and comes back in time
// changes nothing.
type Lease struct {
	Options
	holder string

	mu      sync.Mutex
	held    bool          // guarded by mu
	got     time.Duration // by the same clock: when the session that has the lock got it; guarded by mu
	expiry  *time.Timer   // ends it; guarded by mu
	reached bool          // there is a session, held or not; guarded by mu
	tenure  int           // how often it was got; guarded by mu
	sent    time.Duration // by the clock of bootTime: the last heartbeat that was answered; guarded by mu
	why     string        // why it is not held; guarded by mu
	changed chan struct{} // closed and replaced when held changes; guarded by mu
	leave   chan struct{} // closed by Release
	left    chan struct{} // closed when Run has ended
	once    sync.Once
}

// New makes a lease that is not held.
func New(o Options) *Lease {
	return &Lease{
		Options: o, holder: newHolder(), why: "not asked yet",
		changed: make(chan struct{}), leave: make(chan struct{}), left: make(chan struct{}),
	}
}

// Holder names this process in walpost.leader.
func (l *Lease) Holder() string { return l.holder }

// Application is the application_name that all sessions of this process must carry, so that its successor
// can end them.
func (l *Lease) Application() string { return application(l.Slot, l.holder) }

// application is cut where Postgres would cut it. (PostgreSQL manual, "application_name": 63 bytes)
func application(slot, holder string) string {
	const most = 63
	if room := most - len("walpost//") - len(holder); len(slot) > room {
		slot = slot[:max(0, room)]
	}
	return "walpost/" + slot + "/" + holder
}

// Valid reports whether an attempt may begin at this moment. It reads a clock that goes on while the
// machine sleeps, so it is right also in a process that was frozen.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held && bootTime()-l.sent < term
}

// State is how a lease stands at a moment.
type State struct {
	Held bool
	// Tenure is how often the lease was got.
	Tenure int
	// Reached tells that Postgres is reached, Held or not.
	Reached bool
	// Why is why it is not held, for people.
	Why string
	// Changed is closed when Held changes.
	Changed <-chan struct{}
}

// State returns how the lease stands.
func (l *Lease) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{l.held, l.tenure, l.reached, l.why, l.changed}
}

// Await returns when the lease is held, or with the error of ctx.
func (l *Lease) Await(ctx context.Context) error {
	for {
		state := l.State()
		if state.Held {
			return nil
		}
		select {
		case <-state.Changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Lease) set(held bool, sent time.Duration, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(held, sent, why)
}

func (l *Lease) setLocked(held bool, sent time.Duration, why string) {
	l.sent, l.why = sent, why
	if held {
		left := term - (bootTime() - sent)
		if l.expiry == nil {
			l.expiry = time.AfterFunc(left, l.expire)
		} else {
			l.expiry.Reset(left)
		}
	}
	if l.held != held {
		l.held = held
		l.tell()
	}
}

// tell wakes those who wait for a change; mu is held.
func (l *Lease) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// expire ends a lease whose heartbeats are not answered any more.
func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held && bootTime()-l.sent >= term {
		l.setLocked(false, 0, "Postgres does not answer")
	}
}

// begin is the first heartbeat of a session that has the lock.
func (l *Lease) begin(sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held && sent-l.sent >= term {
		l.setLocked(false, 0, "Postgres did not answer") // once it was not valid, a tenure never is again
	}
	l.got = sent
	l.tenure++
	l.setLocked(true, sent, "")
	l.tell() // also where it was held all the time: whoever acts must know that the session is another one
}

// lose is the end of a session. The lease goes on for the rest of its time, unless sessions are lost one
// after the other: then a standby may have seen nobody hold the lock for long enough.
func (l *Lease) lose(why error) (held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reached = false
	if !l.held || l.tenure > 1 && bootTime()-l.got < term {
		l.setLocked(false, 0, why.Error())
	}
	return l.held
}

func (l *Lease) reach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reached = true
}

// Release gives the lease up for good, so that a standby takes it at once, and waits until that is done. It
// is for a leader that has recorded everything and stops.
func (l *Lease) Release() {
	l.once.Do(func() { close(l.leave) })
	<-l.left
}

// Run tries to get the lease, keeps it and tries again, until ctx ends or Release is called. It never fails:
// without Postgres there is no lease.
func (l *Lease) Run(ctx context.Context) {
	defer close(l.left)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.leave:
			cancel()
		case <-ctx.Done():
		}
	}()
	var said string
	for failures := 0; ; failures++ {
		begun := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			l.set(false, 0, "it was released")
			return
		}
		if time.Since(begun) > longest { // it was a session
			failures = 0
		}
		if text := err.Error(); text != said { // once for each trouble
			said = text
			l.Log.Warn("no session for the lease, will try again", "err", err)
		}
		wait := pauseAfter(failures)
		if l.lose(err) {
			wait = hurry / 4 // in time it changes nothing
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// pauseAfter is how long to wait after so many sessions in a row that did not last: at first so short that a
// restart of the server costs little, and never the same for all that wait.
func pauseAfter(failures int) time.Duration {
	most := min(heartbeat/2<<min(failures, 8), longest)
	return most/2 + mathrand.N(most/2)
}

// session connects, waits for the lock and keeps it until the session or ctx ends.
func (l *Lease) session(ctx context.Context) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		select {
		case <-l.leave:
			l.sayGoodbye(closing, conn)
		default:
		}
		_ = conn.Close(closing)
	}()
	l.reach()
	if err := l.stand(ctx, conn); err != nil {
		return err
	}
	return l.keep(ctx, conn)
}

func (l *Lease) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := postgres.ConnConfig(l.URL)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = l.Application()
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, postgres.ConnectError(err, l.URL)
	}
	if _, err := conn.Exec(ctx, `LISTEN walpost`); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("listen for changes: %w", err)
	}
	return conn, nil
}

// keep is the life of a leader. The session is read all the time, so that its end is noticed at once and
// not at the next heartbeat.
func (l *Lease) keep(ctx context.Context, conn *pgx.Conn) error {
	for first, last := true, bootTime(); ; first = false {
		sent := bootTime()
		limited, cancel := context.WithTimeout(ctx, term-(sent-last))
		_, err := conn.Exec(limited, `SELECT 1`)
		cancel()
		if err != nil {
			return fmt.Errorf("the session of the lease does not answer: %w", err)
		}
		// An answer that came too late is none: once it was not valid, a tenure never is again.
		if bootTime()-last >= term {
			return errors.New("the session of the lease answered too late")
		}
		if last = sent; first {
			l.begin(sent)
		} else {
			l.set(true, sent, "")
		}
		if err := l.listen(ctx, conn, heartbeat); err != nil {
			return err
		}
	}
}

// listen waits for so long, and for a notification. It returns an error when the session or ctx has ended.
func (l *Lease) listen(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		note, err := conn.WaitForNotification(waiting)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("the session of the lease has ended: %w", err)
		case note.Payload == l.Slot && l.Notified != nil:
			l.Notified()
		case note.Payload == l.Slot+leftSuffix:
			return nil
		}
	}
}

// leftSuffix is what a leader that leaves adds to the slot's name in its last notification.
const leftSuffix = "/left"

// sayGoodbye lets the successor know that nothing of this leadership is under way any more.
func (l *Lease) sayGoodbye(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() {
		return
	}
	_, err := conn.Exec(ctx, `UPDATE walpost.leader SET holder = '' WHERE slot = $1 AND holder = $2`, l.Slot, l.holder)
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
	}
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_notify('walpost', $1)`, l.Slot+leftSuffix)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		l.Log.Warn("cannot tell the successor that the slot is free; it finds out in seconds", "err", err)
	}
}

// newHolder is unlike that of any other process, and tells people and neighbours where this one runs.
func newHolder() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%.20s/%d/%s/%s", host, os.Getpid(), namespace(), random())
}

// isDead reports whether the process of a holder is known to have ended: only one in our own namespace of
// process ids can be looked at.
func isDead(holder string) bool {
	parts := strings.Split(holder, "/")
	if len(parts) != 4 || parts[2] != namespace() {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	return err == nil && (pid == os.Getpid() || syscall.Kill(pid, 0) == syscall.ESRCH)
}

func random() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
