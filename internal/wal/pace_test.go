package wal

import (
	"math/rand/v2"
	"testing"
	"time"
)

const kib, mib = 1 << 10, 1 << 20

// server is a server that writes so many bytes in a second into a socket, as long as that has room, and a reader that
// needs a time for what it has read. Its clock is its own.
type server struct {
	rate    float64       // bytes in a second
	socket  int           // bytes that the socket holds
	buffer  int           // bytes of a read
	cost    time.Duration // of the reader, for each read
	each    float64       // seconds of the reader, for each byte
	awake   time.Duration // until a server that stood still, because the socket was full, writes again
	coarse  time.Duration // what a sleep lasts at least
	noisy   bool          // it writes in bursts: for some milliseconds twice as fast, or a third as fast
	changes float64       // factor by which the server becomes faster after half of the time
}

// rule says how long to wait before the next read: what the last one brought, whether it filled the buffer, and how long
// ago the one before was, with how much of that was a wait.
type rule func(brought int, full bool, took, slept time.Duration) time.Duration

// run lets the reader read for ten seconds, waiting as the rule says, and returns the bytes and reads in a second of the
// last third of it.
func (s server) run(wait rule) (rate, reads float64) {
	const span = 10.0
	var now, filled, last, bytes, asleep float64
	var slept time.Duration
	random := rand.New(rand.NewPCG(1, 2))
	speed, until := s.rate, 0.0
	pass := func(seconds float64) {
		now += seconds
		stands := min(asleep, seconds)
		asleep -= stands
		filled = min(filled+speed*(seconds-stands), float64(s.socket))
	}
	for now < span {
		if s.changes != 0 && now > span/2 {
			speed = s.rate * s.changes
		}
		if s.noisy && now > until {
			speed, until = s.rate*(0.3+1.4*random.Float64()), now+0.004*random.Float64()
		}
		if filled < 1 {
			pass(asleep + 1/speed)
		}
		brought := min(filled, float64(s.buffer))
		if filled == float64(s.socket) {
			asleep = s.awake.Seconds()
		}
		filled -= brought
		took := now - last
		last = now
		if now > span*2/3 {
			bytes += brought
			reads++
		}
		pass(s.cost.Seconds() + brought*s.each)
		slept = wait(int(brought), int(brought) == s.buffer, time.Duration(took*1e9), slept)
		if slept > 0 {
			slept = max(slept, s.coarse)
			pass(slept.Seconds())
		}
	}
	return bytes / (span / 3), reads / (span / 3)
}

// rules are ways to wait; all but pace are wrong for some server.
var rules = map[string]func() rule{
	"pace": func() rule {
		p := &pace{}
		var sum int
		var since, waited time.Duration
		return func(brought int, full bool, took, slept time.Duration) time.Duration {
			sum, since, waited = sum+brought, since+took, waited+slept
			if full && brought < maxBuffer {
				return 0 // as the stream does
			}
			p.noteRead(sum, since, waited, full)
			sum, since, waited = 0, 0, 0
			return p.next(backlogWait)
		}
	},
	"a fixed wait": func() rule {
		return func(int, bool, time.Duration, time.Duration) time.Duration { return backlogWait }
	},
	"no wait": func() rule {
		return func(int, bool, time.Duration, time.Duration) time.Duration { return 0 }
	},
	"a fixed wait, but none after a full buffer": func() rule {
		return func(_ int, full bool, _, _ time.Duration) time.Duration {
			if full {
				return 0
			}
			return backlogWait
		}
	},
}

// Servers that a reader has to get on with.
var (
	smallOverTCP = server{rate: 20 * mib, socket: 4 * mib, buffer: 256 * kib, cost: 5 * time.Microsecond}
	unixSocket   = server{rate: 60 * mib, socket: 40 * kib, buffer: 64 * kib, cost: 5 * time.Microsecond, each: 2e-9, awake: 30 * time.Microsecond}
)

// A reader takes what the server can write, and wakes no more often than it must.
func TestPace_takesWhatTheServerCanWriteWithFewReads(t *testing.T) {
	with := func(s server, change func(*server)) server {
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		server
		least float64 // of what is possible
		reads float64 // a second, at most; 0 for any number
	}{
		"small messages over TCP":            {smallOverTCP, 0.97, 800},
		"a slow server over TCP":             {with(smallOverTCP, func(s *server) { s.rate = 2 * mib }), 0.97, 800},
		"a server that becomes slower":       {with(smallOverTCP, func(s *server) { s.changes = 0.05 }), 0.97, 800},
		"a server that becomes faster":       {with(smallOverTCP, func(s *server) { s.changes = 10 }), 0.93, 1200},
		"large messages over TCP":            {server{rate: 900 * mib, socket: 3 * mib, buffer: mib, cost: 5 * time.Microsecond, each: 0.2e-9}, 0.9, 3000},
		"a small receive buffer":             {server{rate: 100 * mib, socket: 64 * kib, buffer: 64 * kib, cost: 5 * time.Microsecond}, 0.9, 5000},
		"a Unix socket":                      {unixSocket, 0.9, 4500},
		"a Unix socket, large messages":      {with(unixSocket, func(s *server) { s.rate, s.socket, s.each = 1000*mib, 200*kib, 0.2e-9 }), 0.85, 0},
		"a Unix socket, and a slow reader":   {with(unixSocket, func(s *server) { s.each = 40e-9 }), 0.9, 4500},
		"a Unix socket that becomes faster":  {with(unixSocket, func(s *server) { s.changes = 3 }), 0.85, 0},
		"a Unix socket, and coarse sleep":    {with(unixSocket, func(s *server) { s.coarse = 1100 * time.Microsecond }), 0.85, 0},
		"small messages over TCP, in bursts": {with(smallOverTCP, func(s *server) { s.noisy = true }), 0.95, 1200},
		"a Unix socket, in bursts":           {with(unixSocket, func(s *server) { s.noisy = true }), 0.85, 9000},
		"TLS, a record for each small read":  {server{rate: 40 * mib, socket: 4 * mib, buffer: 256 * kib, cost: 5 * time.Microsecond, each: 8e-9}, 0.97, 800},
		"a reader slower than small records": {server{rate: 40 * mib, socket: 4 * mib, buffer: 256 * kib, cost: 5 * time.Microsecond, each: 30e-9}, 0.9, 0},
	} {
		t.Run(name, func(t *testing.T) {
			possible, _ := test.run(rules["no wait"]())
			rate, reads := test.run(rules["pace"]())
			t.Logf("%.2f of what can be had in %.0f reads a second", rate/possible, reads)
			if rate < possible*test.least {
				t.Errorf("it takes %.2f of what can be had, want %.2f at least", rate/possible, test.least)
			}
			if test.reads > 0 && reads > test.reads {
				t.Errorf("it reads %.0f times a second, want %.0f at most", reads, test.reads)
			}
		})
	}
}

// The test of the test: each other rule fails for one of the servers.
func TestPace_otherRulesAreWrong(t *testing.T) {
	possible, _ := unixSocket.run(rules["no wait"]())
	for _, rule := range []string{"a fixed wait", "a fixed wait, but none after a full buffer"} {
		if rate, _ := unixSocket.run(rules[rule]()); rate > possible*0.6 {
			t.Errorf("%s takes %.2f of what can be had over a Unix socket: the test cannot tell it from a right one", rule, rate/possible)
		}
	}
	if _, reads := smallOverTCP.run(rules["no wait"]()); reads < 10_000 {
		t.Errorf("without a wait there are %.0f reads a second: the test cannot tell that from a right one", reads)
	}
}

// A stream that is neither behind nor busy is read at once, whatever was learned before, and a busy one with a wait that is
// short for those who wait for an event.
func TestPace_waitsNoLongerThanIsAllowed(t *testing.T) {
	p := &pace{}
	for range 10_000 {
		wait := p.next(backlogWait)
		p.noteRead(int(wait+10*time.Microsecond), wait+10*time.Microsecond, wait, false)
	}
	if p.wait != backlogWait {
		t.Errorf("a server that is never held up is waited for %v, want %v", p.wait, backlogWait)
	}
	for range 100 {
		if wait := p.next(0); wait != 0 {
			t.Fatalf("it waits %v and should not", wait)
		}
		if wait := p.next(busyWait); wait > busyWait {
			t.Fatalf("it waits %v, longer than %v", wait, busyWait)
		}
		p.noteRead(1000, time.Millisecond, busyWait, false)
	}
}

func TestTraffic_isUrgentUnlessTheStreamIsBusyOrBehind(t *testing.T) {
	for _, test := range []struct {
		name   string
		every  time.Duration // between two messages
		behind bool
		want   time.Duration
	}{
		{"quiet", time.Millisecond, false, 0},
		{"busy", 20 * time.Microsecond, false, busyWait},
		{"behind", time.Millisecond, true, backlogWait},
	} {
		at := time.Unix(0, 0)
		tr := traffic{behind: test.behind, counted: at}
		for range 5000 {
			at = at.Add(test.every)
			tr.count++
			tr.judge(at)
		}
		if got := tr.longestWait(); got != test.want {
			t.Errorf("%s: a read waits for %v at most, want %v", test.name, got, test.want)
		}
	}
}
