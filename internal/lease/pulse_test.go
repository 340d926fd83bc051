package lease

import (
	"errors"
	"testing"
	"time"
)

// S-290: what is asked and answered, and from when on the answer is overdue.
func TestPulse_knowsWhenAnAnswerIsOverdue(t *testing.T) {
	const ms = time.Millisecond
	// each is an answer that took so long, and then a question that is not answered
	for name, c := range map[string]struct {
		answers []time.Duration
		want    time.Duration
	}{
		"a server nearby":                          {[]time.Duration{ms, ms}, 152 * ms},
		"one far away":                             {[]time.Duration{200 * ms, 200 * ms}, 550 * ms},
		"one that has become slow":                 {[]time.Duration{ms, 80 * ms}, 310 * ms},
		"one that was slow a moment ago":           {[]time.Duration{80 * ms, ms}, 290 * ms},
		"one that takes longer than may be waited": {[]time.Duration{2500 * ms}, 1150 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Hour
			var p pulse
			for _, took := range c.answers {
				p.noteQuestion(now)
				p.answer(now, now+took)
				now += took
				if p.overdue(now + time.Hour) {
					t.Error("overdue although nothing is asked")
				}
			}
			p.noteQuestion(now)
			p.noteQuestion(now + 100*ms) // the session is lost, too: the first question counts
			if p.overdue(now + c.want - ms) {
				t.Errorf("overdue before %v", c.want)
			}
			if !p.overdue(now + c.want) {
				t.Errorf("not overdue after %v", c.want)
			}
		})
	}
}

// S-290: a leader that hands out asks ahead of its heartbeat, waits while the answer is overdue, and does not wait for
// a lease that has ended.
func TestLease_isInDoubtWhileAnAnswerIsOverdue(t *testing.T) {
	t.Parallel()
	doubts := 0
	l := New(Options{Slot: "s", Doubted: func() { doubts++ }})
	l.begin(bootTime())
	may := func(wantMay, wantAgain bool) <-chan struct{} {
		t.Helper()
		may, again := l.MayBegin()
		if may != wantMay || (again != nil) != wantAgain {
			t.Fatalf("may begin %v, ask again %v; want %v, %v", may, again != nil, wantMay, wantAgain)
		}
		return again
	}
	may(true, false)
	l.set(true, bootTime()-beat, "")
	may(true, false)
	select {
	case <-l.early:
	default:
		t.Error("the last answer is old, and the session is not asked")
	}
	l.askServer()
	l.mu.Lock()
	l.pulse.asked -= time.Second
	l.mu.Unlock()
	again := may(false, true)
	may(false, true)
	if !l.Valid() {
		t.Error("the lease has ended")
	}
	l.extend(bootTime())
	<-again
	may(true, false)
	l.lose(errors.New("the session has ended"))
	l.mu.Lock()
	l.pulse.asked -= time.Second
	l.mu.Unlock()
	again = may(false, true)
	l.set(false, 0, "Postgres does not answer")
	<-again
	may(false, false)
	if doubts != 2 {
		t.Errorf("%d doubts, want one for each of 2", doubts)
	}
}
