package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
)

// noops are so many subscribers of a kind.
func noops(kind string, n int) flow {
	var f flow
	for i := range n {
		f.subscribers = append(f.subscribers, fmt.Sprintf("{name: %s-%d, kind: %s}", kind, i+1, kind))
	}
	return f
}

// drain lets a relay drain the backlog of so many events until so many of its subscribers have them all.
func (l *lab) drain(ctx context.Context, f flow, events, subscribers int) (sample, error) {
	return l.drainUntil(ctx, f, events, subscribers, nil)
}

// drainUntil is drain that ends when until returns, too.
func (l *lab) drainUntil(ctx context.Context, f flow, events, subscribers int, until func(context.Context) error) (s sample, err error) {
	slot, err := l.copySlot(ctx, f.names()...)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.dropSlot(ctx, slot)) }()
	relay, err := l.startRelay(ctx, slot, events, f, l.profile())
	if err != nil {
		return s, err
	}
	defer relay.stop()
	begun, err := l.streaming(ctx, slot, relay.exited)
	if err != nil {
		return s, err
	}
	all, err := relay.finishedAll(ctx, subscribers)
	if err != nil {
		return s, err
	}
	last := all[len(all)-1]
	end := time.Unix(0, last.At)
	if until != nil {
		if err := until(ctx); err != nil {
			return s, err
		}
		end = time.Now()
	}
	l.notePeak(relay)
	return sample{
		rate:   float64(events) / end.Sub(begun).Seconds(),
		cpu:    float64(last.CPU) / 1e3 / float64(events),
		allocs: float64(last.Mallocs) / float64(events),
	}, nil
}

// profile is the argument with which a process writes its profiles, if someone wants them.
func (l *lab) profile() []string {
	if l.Profiles == "" {
		return nil
	}
	l.profiles++
	return []string{"--cpuprofile=" + filepath.Join(l.Profiles, fmt.Sprintf("%s-%d.pprof", l.current, l.profiles))}
}

const noRecvlogical = "pg_recvlogical is not installed: it comes with the Postgres client programs " +
	"(Debian, Ubuntu: postgresql-client-17; Fedora: postgresql; Alpine: postgresql-client; Homebrew: libpq)"

// findRecvlogical prefers the program in the server's folder: what Debian has in PATH is a wrapper in Perl,
// whose start would count.
func findRecvlogical() (string, bool) {
	if bin, err := pgserver.Find(); err == nil {
		path := filepath.Join(bin, "pg_recvlogical")
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	path, err := exec.LookPath("pg_recvlogical")
	return path, err == nil
}

// recvlogical drains a copy of the slot to /dev/null, up to the position end.
func (l *lab) recvlogical(ctx context.Context, program, end string, events int) (s sample, err error) {
	slot, err := l.copySlot(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.dropSlot(ctx, slot)) }()
	cmd, err := l.recvlogicalCommand(ctx, program, slot, "--endpos="+end)
	if err != nil {
		return s, err
	}
	said := newOutput()
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return s, fmt.Errorf("start pg_recvlogical: %w", err)
	}
	ended := make(chan struct{})
	var failed error // before ended is closed
	var at time.Time
	go func() {
		failed = cmd.Wait()
		at = time.Now()
		close(ended)
	}()
	begun, err := l.streaming(ctx, slot, ended)
	<-ended
	if err != nil || failed != nil {
		return s, errors.Join(err, fmt.Errorf("pg_recvlogical: %w: %s", failed, said.tail()))
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return sample{
		rate: float64(events) / at.Sub(begun).Seconds(),
		cpu:  float64(used.Microseconds()) / float64(events),
	}, nil
}

// duringRecvlogical does something while pg_recvlogical reads a copy of the slot.
func (l *lab) duringRecvlogical(ctx context.Context, program string, do func(context.Context) (sample, error)) (s sample, err error) {
	slot, err := l.copySlot(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.dropSlot(ctx, slot)) }()
	cmd, err := l.recvlogicalCommand(ctx, program, slot)
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, fmt.Errorf("start pg_recvlogical: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is ended below
		close(ended)
	}()
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
	}()
	if _, err := l.streaming(ctx, slot, ended); err != nil {
		return s, err
	}
	return do(ctx)
}

// recvlogicalCommand reads a slot to /dev/null.
func (l *lab) recvlogicalCommand(ctx context.Context, program, slot string, args ...string) (*exec.Cmd, error) {
	server, err := postgres.ConnConfig(l.via)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--start", "--slot=" + slot, "--file=/dev/null", "--no-loop",
		"--option=proto_version=1", `--option=publication_names="` + l.base + `"`, "--option=messages=true",
		"--host=" + server.Host, fmt.Sprintf("--port=%d", server.Port), "--username=" + server.User, "--dbname=" + server.Database}, args...)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+server.Password, "PGGSSENCMODE=disable")
	if target, err := url.Parse(l.via); err == nil { // it is one, see ownDatabase
		for option, variable := range map[string]string{"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY"} {
			if value := target.Query().Get(option); value != "" {
				cmd.Env = append(cmd.Env, variable+"="+value)
			}
		}
	}
	return cmd, nil
}

// intoDebt is the no-op rate with one subscriber more, which is down: its events have to be recorded as owed
// as fast as the stream brings them, or the window is full and everyone waits.
func intoDebt(ctx context.Context, l *lab) error {
	b := bar{what: "falling into debt at stream speed", unit: "events/s", baseline: "no one down", bar: 0.4, aim: 0.7}
	if _, err := l.backlog(ctx, "100", l.Events, l.Payload); err != nil {
		return err
	}
	samples, err := l.turns(ctx, b.what,
		contestant{"one down", func(ctx context.Context) (sample, error) {
			if err := l.reset(ctx); err != nil {
				return sample{}, err
			}
			f := noops("bench-noop", l.Subscribers)
			f.subscribers = append(f.subscribers, "{name: down, kind: bench-down}")
			return l.drainUntil(ctx, f, l.Events, l.Subscribers, func(ctx context.Context) error {
				return l.until(ctx, "all of it to be owed", int64(l.Events),
					`SELECT count(*) FROM walpost.owed WHERE subscriber = 'down' AND state = 'waiting'`)
			})
		}},
		contestant{"no one down", func(ctx context.Context) (sample, error) {
			return l.drain(ctx, noops("bench-noop", l.Subscribers), l.Events, l.Subscribers)
		}})
	if err != nil {
		return err
	}
	l.compare(b, samples[0], samples[1], rateOf)
	return nil
}

// until waits until a count is what is wanted. It asks seldom enough not to be felt.
func (l *lab) until(ctx context.Context, what string, want int64, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		got, err := l.query(ctx, sql)
		if err != nil {
			return err
		}
		if got == want {
			return nil
		}
		if pause(ctx, 25*time.Millisecond) != nil {
			return fmt.Errorf("waited in vain for %s: %d instead of %d", what, got, want)
		}
	}
}
