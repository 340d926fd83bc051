package lane

import (
	"errors"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// What a failed attempt means; see docs/GUARANTEES.md, P6.
func TestBreaker_countsOnlyWhatShowsThatTheEventFails(t *testing.T) {
	start := time.Now()
	no := errors.New("no")
	for _, test := range []struct {
		name        string
		mode        breakerMode
		lastSuccess time.Time
		err         error
		want        bool
	}{
		{"nothing was delivered", breakerClosed, time.Time{}, no, false},
		{"something was delivered before the first failure", breakerClosed, start.Add(-time.Second), no, false},
		{"something was delivered after it", breakerClosed, start.Add(time.Second), no, true},
		{"but the subscriber is away", breakerOpen, start.Add(time.Second), no, false},
		{"but the destination is away", breakerClosed, start.Add(time.Second), subscriber.Away(no), false},
	} {
		b := breaker{mode: test.mode, lastSuccess: test.lastSuccess}
		if got := b.counts(start, test.err); got != test.want {
			t.Errorf("%s (breaker %v): counts %v, want %v", test.name, test.mode, got, test.want)
		}
	}
}

func TestBreaker_opensAfterFiveFailedCallsOfKeysThatAreNotKnownToFail(t *testing.T) {
	now := time.Now()
	b := breaker{backoff: Backoff{Initial: time.Second, Max: time.Minute}}
	if b.knows(now) {
		t.Error("a failure is known to be the key's although nothing was ever delivered")
	}
	b.succeed(now.Add(time.Second))
	for _, failedAt := range []time.Time{now, now.Add(time.Second)} {
		if !b.knows(failedAt) {
			t.Errorf("a key that fails since %v before the last success is not known to fail", failedAt.Sub(now))
		}
	}
	if b.knows(time.Time{}) || b.knows(now.Add(2*time.Second)) {
		t.Error("a key that has not failed before the last success is known to fail")
	}
	for range 100 {
		b.fail(now, true, untriedTurn)
	}
	for n := 1; n <= 5; n++ {
		opened := b.fail(now, false, untriedTurn)
		if want := n == 5; opened != want || b.open() != want {
			t.Errorf("after %d: opened %v, %v, want %v", n, opened, b.mode, want)
		}
	}
	if !b.succeed(now) || b.open() {
		t.Error("the first success does not close it")
	}
}

// The wait for a probe of what has not failed stays below a second, that of the others grows.
func TestBreaker_letsWhatHasNotFailedWaitASecondAtMost(t *testing.T) {
	now := time.Now()
	b := breaker{backoff: Backoff{Initial: 30 * time.Second, Max: time.Hour}}
	for range 5 {
		b.fail(now, false, untriedTurn)
	}
	for range 50 {
		now = now.Add(time.Hour)
		b.fail(now, false, oldestTurn)
		if got := b.next.Sub(now); got > maxProbeGap {
			t.Errorf("next probe after %v, want at most %v", got, maxProbeGap)
		}
		if got := b.nextOther.Sub(now); got < 30*time.Second || got > time.Hour {
			t.Errorf("next probe of what has failed after %v, want 30s to 1h", got)
		}
	}
}

func TestBreaker_givesTurnsInOrder(t *testing.T) {
	var got []string
	for turn, n := untriedTurn, 0; n < 4; turn, n = turn.next(), n+1 {
		got = append(got, turn.String())
	}
	if want := [4]string{"untried", "oldest", "random", "untried"}; [4]string(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFailedKeys_areBounded(t *testing.T) {
	var keys failedKeys
	now := time.Now()
	for i := range 100_000 {
		keys.noteKey(string(rune(i)), now)
	}
	if got, most := len(keys.recent)+len(keys.older), 2*failedKeysLimit; got > most {
		t.Errorf("%d keys, want at most %d", got, most)
	}
	if keys.since(string(rune(99_999))).IsZero() || !keys.since(string(rune(1))).IsZero() {
		t.Error("the newest is forgotten, or the oldest is not")
	}
	keys.forget(string(rune(99_999)))
	if !keys.since(string(rune(99_999))).IsZero() {
		t.Error("a key that was delivered is still known to fail")
	}
}
