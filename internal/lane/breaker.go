package lane

import (
	"hash/maphash"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// breakerThreshold is how many calls in a row must fail before the subscriber counts as away.
	breakerThreshold = 5
	// maxProbeGap is how long, after the last answer of an absent subscriber, an event waits that has not
	// failed since the breaker opened. The bound of docs/GUARANTEES.md ("Isolation") rests on it.
	maxProbeGap = time.Second
)

// breakerMode is what the lane thinks of its subscriber.
type breakerMode int

// A breaker is closed until five calls in a row have failed, and open until the first success.
const (
	breakerClosed breakerMode = iota // calls go out as the options say
	breakerOpen                      // the subscriber is away: one probe at a time, no failure counts
)

func (m breakerMode) String() string {
	if m == breakerOpen {
		return "open"
	}
	return "closed"
}

// turn says where the next probe comes from. The turns follow each other, and one with nothing due is
// skipped: so neither keys that fail, nor events that need a second attempt, nor a long debt can keep the
// others from being tried.
type turn int

const (
	untriedTurn turn = iota // an event that has not failed since the breaker opened, in order of arrival
	oldestTurn              // the key whose next attempt has been due for longest
	randomTurn              // a key from a random place in the debt
	turns
)

func (t turn) String() string {
	return [...]string{"untried", "oldest", "random"}[t]
}

func (t turn) next() turn { return (t + 1) % turns }

// breaker judges failed attempts: whether one counts towards max_attempts, whether the subscriber is away,
// and which probe goes out next while it is. It tells an outage of the subscriber from events that fail,
// and knows no events: the lane asks it and acts. All of it is guarded by Lane.mu.
//
// Invariant: a key that had failed before the last success neither opens the breaker nor keeps it open.
type breaker struct {
	backoff     Backoff
	mode        breakerMode
	lastSuccess time.Time // of any event of the subscriber
	streak      int       // while closed: failed calls in a row, but for keys that had failed before lastSuccess
	keys        failedKeys

	// While open:
	since     time.Time // when it opened
	turn      turn      // of the next probe
	answers   int       // failed calls since it opened
	next      time.Time // no probe before; at most maxProbeGap after the last answer
	others    int       // failed probes of keys that had failed since it opened
	nextOther time.Time // no such probe before; grows to the longest backoff
}

func (b *breaker) open() bool { return b.mode == breakerOpen }

// counts reports whether a failed attempt counts towards max_attempts: only while the subscriber is known
// to be well, that is, another event was delivered after first, the first failure of this one. That the
// destination of the event is away never counts.
func (b *breaker) counts(first time.Time, err error) bool {
	return b.mode == breakerClosed && b.lastSuccess.After(first) && !subscriber.IsAway(err)
}

// knows reports whether a key that has failed since then had failed before the last success already: then
// its failures say nothing about the subscriber.
func (b *breaker) knows(failedAt time.Time) bool {
	return !failedAt.IsZero() && !b.lastSuccess.IsZero() && !failedAt.After(b.lastSuccess)
}

// succeed notes that something was delivered, and closes the breaker. It reports whether it was open.
func (b *breaker) succeed(now time.Time) (closed bool) {
	closed = b.open()
	b.mode, b.lastSuccess, b.streak = breakerClosed, now, 0
	return closed
}

// fail notes a call in which nothing was delivered, and reports whether it opened the breaker. known says
// that all of its keys had failed before the last success; probe is the turn that an open breaker gave it.
func (b *breaker) fail(now time.Time, known bool, probe turn) (opened bool) {
	if b.mode == breakerClosed {
		if !known {
			b.streak++
		}
		if b.streak < breakerThreshold {
			return false
		}
		b.mode, b.since, b.answers, b.others, b.turn = breakerOpen, now, 0, 0, untriedTurn
		b.nextOther = now.Add(b.backoff.Wait(1))
		opened = true
	}
	b.answers++
	b.next = now.Add(min(b.backoff.Wait(b.answers), maxProbeGap))
	if probe != untriedTurn {
		b.others++
		b.nextOther = now.Add(b.backoff.Wait(b.others + 1))
	}
	return opened
}

// failedSince reports whether an attempt that ended then failed while the breaker was open.
func (b *breaker) failedSince(last time.Time) bool { return !last.Before(b.since) }

// failedKeys remembers since when keys fail, also those that have nothing queued at the moment, because
// their last event became a dead letter or went to the debt. It forgets the oldest when there are many: a
// forgotten key fails once more like a new one.
type failedKeys struct {
	recent, older map[uint64]time.Time // by hash; a collision only makes a key ride with those that fail
}

// failedKeysLimit bounds each half of failedKeys, to about half a megabyte.
const failedKeysLimit = 10_000

var keySeed = maphash.MakeSeed()

func (f *failedKeys) noteKey(key string, since time.Time) {
	if len(f.recent) >= failedKeysLimit {
		f.older, f.recent = f.recent, nil
	}
	if f.recent == nil {
		f.recent = make(map[uint64]time.Time)
	}
	f.recent[maphash.String(keySeed, key)] = since
}

// since is the zero time for a key that is not known to fail.
func (f *failedKeys) since(key string) time.Time {
	if len(f.recent) == 0 && len(f.older) == 0 {
		return time.Time{}
	}
	hash := maphash.String(keySeed, key)
	if since, ok := f.recent[hash]; ok {
		return since
	}
	return f.older[hash]
}

func (f *failedKeys) forget(key string) {
	if len(f.recent) == 0 && len(f.older) == 0 {
		return
	}
	hash := maphash.String(keySeed, key)
	delete(f.recent, hash)
	delete(f.older, hash)
}
