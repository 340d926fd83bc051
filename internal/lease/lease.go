// Package lease lets one of several relays lead a slot, and hands the lead over when that one dies, freezes
// or is cut off. A leader is elected by an UPDATE of walpost.leader, and shows that it lives by a session of its own
// with an advisory lock and a heartbeat, which writes nothing (docs/postgres.md §8). It knows nothing about events; that
// no statement of an old leadership comes after one of the new is the business of store.Fence, and who stops and
// resumes what is package relay. Begin with Run and, in stand.go, stand.
package lease

import (
	"cmp"
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
	"github.com/backendstart/walpost/internal/store"
)

const (
	// heartbeat is how often the leader asks something of its session, and how often a standby looks.
	heartbeat = time.Second
	// leaseTime is how long after it sent the last heartbeat that was answered the leader may act.
	leaseTime = 3 * time.Second
	// stale is for how long a holder's session must have asked nothing for a standby to end it. It is more
	// than leaseTime: by then the holder has stopped by its own clock.
	stale = 4 * time.Second
	// hurry is how often a standby looks while the holder is late.
	hurry = 200 * time.Millisecond
	// longest is the longest wait between two attempts to get a session. A standby is useless without one, so
	// it is short; and long enough for a server that refuses everyone.
	longest = 4 * time.Second
	// connectLimit bounds an attempt to connect, and each statement of a takeover.
	connectLimit = 5 * time.Second
)

// Options are what a lease is made of.
type Options struct {
	// URL is a direct connection string: a pooler cannot carry a session's lock.
	URL string
	// Option is the name of URL in the configuration, for errors; "" is replication_url.
	Option string
	Slot   string
	// Address is where the ops API of this process answers, for those who ask another relay; "" is nowhere.
	Address string
	// Works reports whether the process can do its work: one that cannot reach Postgres through its pool takes no
	// lead. nil is always. It must not block for long.
	Works func(ctx context.Context) error
	// Notified is called when a notification of the channel "walpost" names the slot: a person has changed
	// something. Any role can send one, so it may only ask for an earlier look. It must not block; nil calls nothing.
	Notified func()
	// Doubted is called once for each time that attempts wait because the session's answer is overdue. It must not block
	// or call the lease; nil calls nothing.
	Doubted func()
	// Check says why a session that was just made must not hold the lease, for one because it leads to another server
	// than the relay writes to; nil is no check.
	Check func(ctx context.Context, session Session) error
	Log   *slog.Logger
}

// Session is what a check may do with a session of the lease.
type Session interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Lease is held by at most one process of a slot. Its methods may be called by any goroutine; Run once.
//
// Invariant: it is held no longer than leaseTime after the last heartbeat that was answered was sent, on a session whose key
// is the recorded one; and no other is elected before that session has been gone for as long. So a session that is
// lost and comes back in time, with another key, changes nothing.
type Lease struct {
	Options
	holder string

	mu       sync.Mutex
	held     bool          // guarded by mu
	expiry   *time.Timer   // ends it; guarded by mu
	reached  bool          // there is a session, held or not; guarded by mu
	acquired int           // how often it was acquired; guarded by mu
	sent     time.Duration // by the clock of bootTime: the last heartbeat that was answered; guarded by mu
	why      string        // why it is not held; guarded by mu
	changed  chan struct{} // closed and replaced when held changes; guarded by mu
	pulse    pulse         // of the session; guarded by mu
	answered chan struct{} // closed and replaced when a question is answered, and with changed; guarded by mu
	doubted  bool          // an attempt waits for the answer; guarded by mu
	asks     time.Time     // it asks for the lead from then on; guarded by mu
	stepped  bool          // StepDown has ended what was held, and the session must be ended, too; guarded by mu
	leave    chan struct{} // closed by Release
	left     chan struct{} // closed when Run has ended
	freed    chan struct{} // has an element when a leader says that it has left
	early    chan struct{} // has an element when the session is to be asked ahead of the heartbeat
	once     sync.Once
}

// New makes a lease that is not held.
func New(o Options) *Lease {
	return &Lease{
		Options: o, holder: newHolder(), why: notAsked,
		changed: make(chan struct{}), answered: make(chan struct{}), leave: make(chan struct{}), left: make(chan struct{}),
		freed: make(chan struct{}, 1), early: make(chan struct{}, 1),
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
	return l.held && bootTime()-l.sent < leaseTime
}

// MayBegin is Valid for a new attempt, as long as the session of the lease answers. While an answer is overdue it
// also returns a channel: the caller asks again when that is closed, which is when the answer comes
// or the lease has ended.
func (l *Lease) MayBegin() (may bool, again <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := bootTime()
	switch {
	case !l.held || now-l.sent >= leaseTime:
		return false, nil
	case l.pulse.overdue(now):
		if !l.doubted && l.Doubted != nil {
			l.Doubted()
		}
		l.doubted = true
		return false, l.answered
	case now-l.sent >= beat && l.pulse.asked == 0:
		select {
		case l.early <- struct{}{}:
		default:
		}
	}
	return true, nil
}

// State is how a lease stands at a moment.
type State struct {
	Held bool
	// Acquired is how often the lease was acquired.
	Acquired int
	// Asked tells that Postgres was asked for it, whatever the answer.
	Asked bool
	// Reached tells that Postgres is reached, Held or not.
	Reached bool
	// Why is why it is not held, for people.
	Why string
	// Changed is closed when Held changes.
	Changed <-chan struct{}
}

// notAsked is why the lease is not held before Postgres was asked for it.
const notAsked = "not asked yet"

// State returns how the lease stands.
func (l *Lease) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Held: l.held, Acquired: l.acquired, Asked: l.why != notAsked, Reached: l.reached, Why: l.why, Changed: l.changed}
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
		left := leaseTime - (bootTime() - sent)
		if l.expiry == nil {
			l.expiry = time.AfterFunc(left, l.expire)
		} else {
			l.expiry.Reset(left)
		}
	}
	if l.held != held {
		l.held = held
		l.wakeWaitersLocked()
	}
}

// wakeWaitersLocked wakes those who wait for a change; mu is held.
func (l *Lease) wakeWaitersLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
	l.wakeDoubtersLocked()
}

// wakeDoubtersLocked wakes the attempts that wait for an answer.
func (l *Lease) wakeDoubtersLocked() {
	close(l.answered)
	l.answered, l.doubted = make(chan struct{}), false
}

// askServer notes that the session is asked something. It returns when.
func (l *Lease) askServer() (sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent = bootTime()
	l.pulse.noteQuestion(sent)
	return sent
}

// expire ends a lease whose heartbeats are not answered any more.
func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held && bootTime()-l.sent >= leaseTime {
		l.setLocked(false, 0, "Postgres does not answer")
	}
}

// begin is the first heartbeat of a session that leads.
func (l *Lease) begin(sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stepped {
		return
	}
	if l.held && sent-l.sent >= leaseTime {
		l.setLocked(false, 0, "Postgres did not answer") // an expired lease must never become valid again
	}
	l.acquired++
	l.answeredLocked(sent)
	l.setLocked(true, sent, "")
	l.wakeWaitersLocked() // also where it was held all the time: those who act must know that the session is another one
}

// extend is another heartbeat of a session that leads.
func (l *Lease) extend(sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stepped {
		l.answeredLocked(sent)
		l.setLocked(true, sent, "")
	}
}

// answeredLocked notes the answer to what was sent then.
func (l *Lease) answeredLocked(sent time.Duration) {
	l.pulse.answer(sent, bootTime())
	if l.doubted {
		l.wakeDoubtersLocked()
	}
}

// errSteppedDown is the end of a session after StepDown.
var errSteppedDown = errors.New("the lead was given up")

// lose is the end of a session. The lease goes on for the rest of its time.
func (l *Lease) lose(why error) (held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reached = false
	l.pulse.noteQuestion(bootTime())
	if !l.held {
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

// StepDown gives the lead up, so that a standby takes it within a heartbeat, and asks for it again after a while. It is
// not valid any more when StepDown returns. If no other has led by then, the leadership goes on
// under its old term.
func (l *Lease) StepDown(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks, l.stepped = time.Now().Add(pause), true
	l.setLocked(false, 0, "it was given up")
}

// steppedDown reports whether StepDown has ended what the session held; with reset it may hold the lease again.
func (l *Lease) steppedDown(reset bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	stepped := l.stepped
	l.stepped = stepped && !reset
	return stepped
}

// mayAsk returns why the lead may not be asked for now, nil if it may.
func (l *Lease) mayAsk(ctx context.Context) error {
	l.mu.Lock()
	pause := time.Until(l.asks)
	l.mu.Unlock()
	if pause > 0 {
		return fmt.Errorf("it has given up the lead and asks for it again in %v", pause.Round(time.Second))
	}
	if l.Works == nil {
		return nil
	}
	if err := l.Works(ctx); err != nil {
		return fmt.Errorf("it takes no lead while its own connections do not reach Postgres: %w", err)
	}
	return nil
}

// StandsBy reports whether another relay of the slot stands by. It opens a session of its own for the question.
func (l *Lease) StandsBy(ctx context.Context) (bool, error) {
	conn, err := l.dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// What is cut off of a long name depends on the holder.
	const most = len("12345678901234567890/1234567890/123456/123456")
	prefix := application(l.Slot, strings.Repeat("-", most))
	prefix = strings.TrimRight(prefix, "-")
	if prefix != "walpost/"+l.Slot+"/" {
		prefix = strings.TrimSuffix(prefix, "/")
	}
	return store.StandsBy(ctx, conn, prefix, l.Application())
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
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		l.listen(ctx)
	}()
	defer func() {
		cancel()
		<-listening
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
		if errors.Is(err, errSteppedDown) {
			continue
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

// session connects, waits until it leads and keeps the lead until the session or ctx ends.
func (l *Lease) session(ctx context.Context) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	var key store.Key
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		select {
		case <-l.leave:
			l.sayGoodbye(closing, conn, key, true)
		default:
			if errors.Is(err, errSteppedDown) {
				l.sayGoodbye(closing, conn, key, false)
			}
		}
		_ = conn.Close(closing)
	}()
	l.reach()
	if key, err = l.stand(ctx, conn); err != nil {
		return err
	}
	err = l.heartbeat(ctx, conn)
	return err
}

func (l *Lease) dial(ctx context.Context) (*pgx.Conn, error) {
	// An election must not wait for a standby: who leads says nothing that the standby's server would need.
	config, err := postgres.DirectConfig(l.URL, l.Application(), postgres.Pin{Name: "synchronous_commit", Value: "local"})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(l.Option, "replication_url"), postgres.ConnectError(err, l.URL))
	}
	return conn, nil
}

func (l *Lease) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	if l.Check != nil {
		if err := l.Check(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
	}
	return conn, nil
}

// heartbeat is the life of a leader. The session is read all the time, so that its end is noticed at once and
// not at the next heartbeat.
func (l *Lease) heartbeat(ctx context.Context, conn *pgx.Conn) error {
	for first, last := true, bootTime(); ; first = false {
		sent := l.askServer()
		limited, cancel := context.WithTimeout(ctx, leaseTime-(sent-last))
		_, err := conn.Exec(limited, `SELECT 1`)
		cancel()
		if err != nil {
			return fmt.Errorf("the session of the lease does not answer: %w", err)
		}
		// Treat a late answer as none: an expired lease must never become valid again.
		if bootTime()-last >= leaseTime {
			return errors.New("the session of the lease answered too late")
		}
		if last = sent; first {
			l.begin(sent)
		} else {
			l.extend(sent)
		}
		if err := l.pause(ctx, conn, heartbeat, l.early); err != nil {
			return err
		}
		if l.steppedDown(false) {
			return errSteppedDown
		}
	}
}

// pause waits for so long, or until a leader says that it has left, or for early. It returns an error when the session or
// ctx has ended.
func (l *Lease) pause(ctx context.Context, conn *pgx.Conn, d time.Duration, early <-chan struct{}) error {
	waiting, cancel := context.WithTimeout(ctx, d)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-l.freed:
			cancel()
		case <-early:
			cancel()
		case <-waiting.Done():
		}
	}()
	defer func() {
		cancel()
		<-watched
	}()
	_, err := conn.WaitForNotification(waiting) // the session listens to nothing, so none comes
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && waiting.Err() == nil:
		return fmt.Errorf("the session of the lease has ended: %w", err)
	}
	return nil
}

// sayGoodbye lets the successor know that nothing of this leadership is handed over any more; with forget, that
// nothing of it is under way either.
func (l *Lease) sayGoodbye(ctx context.Context, conn *pgx.Conn, key store.Key, forget bool) {
	if conn.IsClosed() || key == 0 {
		return
	}
	err := store.GiveUp(ctx, conn, l.Slot, l.holder, key, forget)
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_catalog.pg_notify('walpost', $1)`, l.Slot+leftSuffix)
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
