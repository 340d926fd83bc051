package lane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
)

// A reporting pipeline reports a delivery when the test says so, or by a rule as soon as it is sent.
type reporting struct {
	rule func(d subscriber.Delivery) (after time.Duration, never bool, err error) // nil: all at once and well
	hold bool                                                                     // nothing is reported but by report

	mu     sync.Mutex
	sent   []subscriber.Delivery // guarded by mu
	at     []time.Time           // of sent; guarded by mu
	open   map[string]func(err error)
	most   int           // deliveries that were open at once; guarded by mu
	aborts int           // guarded by mu
	slow   time.Duration // of Abort
}

func newReporting() *reporting { return &reporting{open: make(map[string]func(error))} }

func (p *reporting) Name() string                                      { return "reporting" }
func (p *reporting) Wants(string) bool                                 { return true }
func (p *reporting) Handle(context.Context, subscriber.Delivery) error { panic("a lane sends") }

func (p *reporting) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	for i, d := range deliveries {
		if ctx.Err() != nil {
			done(i, context.Cause(ctx))
			continue
		}
		p.mu.Lock()
		p.sent, p.at = append(p.sent, d), append(p.at, time.Now())
		p.open[d.ID] = func(err error) { done(i, err) }
		p.most = max(p.most, len(p.open))
		p.mu.Unlock()
		after, never, err := p.answer(d)
		switch {
		case never:
		case after > 0:
			go func() {
				time.Sleep(after)
				p.report(d.ID, err)
			}()
		default:
			p.report(d.ID, err)
		}
	}
}

// report tells how a delivery ended, if it is open.
func (p *reporting) report(id string, err error) {
	p.mu.Lock()
	done := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	if done != nil {
		done(err)
	}
}

func (p *reporting) Abort(ctx context.Context) error {
	p.mu.Lock()
	p.aborts++
	var open []string
	for id := range p.open {
		open = append(open, id)
	}
	slow := p.slow
	p.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, id := range open {
		p.report(id, errors.New("given up"))
	}
	return nil
}

// ids are those of everything that was sent, in order.
func (p *reporting) ids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, len(p.sent))
	for i, d := range p.sent {
		ids[i] = d.ID
	}
	return ids
}

// answer is what the rule says, or hold.
func (p *reporting) answer(d subscriber.Delivery) (after time.Duration, never bool, err error) {
	p.mu.Lock()
	rule, hold := p.rule, p.hold
	p.mu.Unlock()
	if rule == nil {
		return 0, hold, nil
	}
	return rule(d)
}

// change lets the test change how it reports.
func (p *reporting) change(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how()
}

func manyAtOnce() lane.Options {
	o := settings()
	o.Batch, o.Concurrency = 100, 2
	return o
}

func TestPipeline_aKeyGoesOnWhenAllOfItsDeliveriesAreReportedInWhateverOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.hold = true
		r := newRig(t, sub, manyAtOnce())
		r.offer("K/0", "K/1", "L/0", "K/2")
		r.start(time.Minute)
		synctest.Wait()
		r.offer("K/3")
		for _, id := range []string{"K/2", "K/0"} {
			sub.report(id, nil)
		}
		synctest.Wait()
		if got, want := sub.ids(), []string{"K/0", "K/1", "K/2", "L/0"}; !slices.Equal(got, want) {
			t.Errorf("sent %v, want %v: K/1 is not reported", got, want)
		}
		sub.report("L/0", nil)
		synctest.Wait()
		if !r.hasEnded("L/0") || r.hasEnded("K/0") {
			t.Errorf("L/0 has ended: %v, K/0: %v; want the key alone whose deliveries are all reported", r.hasEnded("L/0"), r.hasEnded("K/0"))
		}
		sub.report("K/1", nil)
		synctest.Wait()
		if got := sub.ids(); got[len(got)-1] != "K/3" {
			t.Errorf("sent %v, want K/3 in the end", got)
		}
		sub.report("K/3", nil)
		r.await(5)
	})
}

// What was sent behind a delivery that fails is sent again behind it, but for what was stored all the same.
func TestPipeline_aFailureInTheMiddleKeepsTheOrderOfWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			switch {
			case d.ID == "K/1" && d.Attempt == 1:
				return time.Second, false, errors.New("not now")
			case d.ID == "K/2" && len(sub.ids()) <= 4:
				return time.Millisecond, false, subscriber.ErrHeld
			}
			return time.Millisecond, false, nil
		}
		r := newRig(t, sub, manyAtOnce())
		r.offer("K/0", "K/1", "K/2", "K/3")
		r.start(time.Minute)
		ends := r.await(4)
		if got, want := sub.ids(), []string{"K/0", "K/1", "K/2", "K/3", "K/1", "K/2"}; !slices.Equal(got, want) {
			t.Errorf("sent %v, want %v", got, want)
		}
		for _, e := range ends {
			want := 0
			if e.id == "K/1" {
				want = 1
			}
			if e.dead || e.attempts != want {
				t.Errorf("%+v, want %d failed attempts", e, want)
			}
		}
	})
}

// S-280: a partition of a broker without a leader.
func TestPipeline_aSickPartMakesNoDeadLetterAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			if d.Key[0] == 'S' && time.Since(begin) < 10*time.Minute {
				return 2 * time.Second, false, subscriber.Away(errors.New("no leader"))
			}
			return 5 * time.Millisecond, false, nil
		}
		o := manyAtOnce()
		o.MaxAttempts, o.StallAfter, o.InFlight = 3, time.Minute, 100
		r := newRig(t, sub, o)
		r.share = 1000
		r.start(time.Minute)
		const keys = 60
		n := 0
		offered := make(map[string]time.Time)
		for time.Since(begin) < few(2*time.Minute, 10*time.Minute) {
			for k := range keys {
				id := fmt.Sprintf("H%d/%d", k, n)
				if k%6 == 0 {
					id = fmt.Sprintf("S%d/%d", k, n)
				}
				offered[id] = time.Now()
				r.offer(id)
			}
			n++
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Minute)
		var slowest time.Duration
		for _, e := range r.await(keys * n * 5 / 6) {
			if e.dead {
				t.Errorf("%s is a dead letter", e.id)
			}
			if e.id[0] == 'H' {
				slowest = max(slowest, e.at.Sub(offered[e.id]))
			}
		}
		if most := 100 * time.Millisecond; slowest > most {
			t.Errorf("an event of a healthy key took %v, want at most %v", slowest, most)
		}
		last := make(map[string]string)
		seen := make(map[string]bool)
		for _, d := range sub.sent {
			if seen[d.ID] {
				continue
			}
			seen[d.ID] = true
			if before := last[d.Key]; len(before) > len(d.ID) || len(before) == len(d.ID) && before > d.ID {
				t.Errorf("%s was sent first after %s", d.ID, before)
			}
			last[d.Key] = d.ID
		}
		if got := len(seen); got != keys*n || r.Stats().Open > 0 || len(r.debt.waiting()) > 0 {
			t.Errorf("%d of %d were sent, %d are open, %d wait", got, keys*n, r.Stats().Open, len(r.debt.waiting()))
		}
		if sub.most > o.InFlight {
			t.Errorf("%d were in flight, want at most %d", sub.most, o.InFlight)
		}
	})
}

func TestPipeline_whatIsNeverReportedIsNamedAndHoldsOnlyItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			return 0, d.Key == "K" && d.Attempt == 1, nil
		}
		o := manyAtOnce()
		o.StallAfter = time.Minute
		r := newRig(t, sub, o)
		r.start(time.Minute)
		r.offer("K/0", "L/0")
		r.awaitEnd("L/0")
		r.offer("K/1")
		time.Sleep(12 * time.Second)
		if got, want := r.Stats().Overdue, []string{"K/0"}; !slices.Equal(got, want) {
			t.Errorf("overdue: %v, want %v", got, want)
		}
		for i := range 50 {
			id := fmt.Sprintf("M/%d", i)
			r.offer(id)
			if e := r.awaitEnd(id); e.dead {
				t.Errorf("%s is dead", id)
			}
		}
		time.Sleep(2 * time.Minute)
		if got, want := r.debt.waiting(), []string{"K/0", "K/1"}; !slices.Equal(got, want) {
			t.Errorf("recorded as owed: %v, want %v", got, want)
		}
		if got := sub.ids(); slices.Index(got, "K/1") >= 0 {
			t.Errorf("K/1 was sent although K/0 is not reported")
		}
		// What the pipeline says now is too late: it is recorded, and is sent again from there.
		sub.change(func() { sub.rule = nil })
		sub.report("K/0", nil)
		r.await(52)
		time.Sleep(time.Minute)
		if got := r.debt.waiting(); len(got) > 0 {
			t.Errorf("%v wait in the end", got)
		}
		ids := slices.DeleteFunc(sub.ids(), func(id string) bool { return id[0] != 'K' })
		if want := []string{"K/0", "K/0", "K/1"}; !slices.Equal(ids, want) {
			t.Errorf("sent %v of K, want %v", ids, want)
		}
	})
}

// A pipeline that reports nothing at all has at most in_flight events, and the others of the window do not wait for it.
func TestPipeline_thatReportsNothingIsBoundedAndFallsIntoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.hold = true
		o := manyAtOnce()
		o.InFlight, o.Standstill = 30, 10*time.Second
		r := newRig(t, sub, o)
		r.share = 50
		r.start(time.Minute)
		for i := range 100 {
			r.offer(fmt.Sprintf("K%d/0", i))
		}
		time.Sleep(9 * time.Second)
		if s := r.Stats(); s.InDebt || sub.most != 30 {
			t.Errorf("after 9s: in debt %v, %d in flight; want not yet, and 30", s.InDebt, sub.most)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Open > 0 || len(r.debt.waiting()) != 100 || sub.most != 30 || len(s.Overdue) != 30 {
			t.Errorf("%d open, %d owed, %d in flight, %d overdue; want none, 100, 30 and 30", s.Open, len(r.debt.waiting()), sub.most, len(s.Overdue))
		}
		sub.change(func() { sub.hold = false })
		for i := range 30 {
			sub.report(fmt.Sprintf("K%d/0", i), errors.New("timed out"))
		}
		time.Sleep(10 * time.Minute)
		if got := r.debt.waiting(); len(got) > 0 {
			t.Errorf("%d wait in the end", len(got))
		}
	})
}

// What was recorded as owed while it was not reported is in no window any more, and still in memory.
func TestPipeline_thatReportsNothingIsBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.hold = true
		o := manyAtOnce()
		o.StallAfter = time.Second
		r := newRig(t, sub, o)
		r.share = 5
		r.start(time.Minute)
		payload := make([]byte, 1<<20)
		for i := range 200 {
			r.offerEvent(&event.Event{Source: "lessons", ID: fmt.Sprint(i), Key: fmt.Sprint(i), Type: "lesson.completed", Payload: payload})
			time.Sleep(5 * time.Second)
		}
		if most := 64 + 1; sub.most > most || sub.most < 60 {
			t.Errorf("%d MiB in flight, want at most %d and not much less", sub.most, most)
		}
	})
}

// Failing keys have at most half of the room.
func TestPipeline_keysThatFailLeaveRoomForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			if d.Key[0] != 'S' {
				return time.Millisecond, false, nil
			}
			if d.Attempt == 1 {
				return time.Millisecond, false, subscriber.Away(errors.New("no leader"))
			}
			return 9 * time.Second, false, subscriber.Away(errors.New("no leader"))
		}
		o := manyAtOnce()
		o.InFlight = 10
		r := newRig(t, sub, o)
		r.start(time.Minute)
		for i := range 100 {
			r.offer(fmt.Sprintf("S%d/0", i), fmt.Sprintf("H%d/0", i))
			time.Sleep(10 * time.Millisecond)
		}
		for i := range 200 {
			begin := time.Now()
			id := fmt.Sprintf("H/%d", i)
			r.offer(id)
			if took := r.awaitEnd(id).at.Sub(begin); took > 100*time.Millisecond {
				t.Errorf("%s took %v next to keys that fail slowly", id, took)
			}
			time.Sleep(time.Second)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // what was not reported by then
	})
}

// S-471: a few keys whose events are on their way to a part of the destination that hangs, many of each, leave room for the
// others: live, while they fail, and from the debt.
func TestPipeline_aFewKeysThatAreNeverReportedLeaveRoomForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			switch {
			case d.Key[0] == 'H':
				return time.Millisecond, false, nil
			case d.Attempt == 1 && d.Key[1] == '0': // this one fails first
				return time.Millisecond, false, subscriber.Away(errors.New("no leader"))
			}
			return 0, true, nil
		}
		o := manyAtOnce()
		o.InFlight = 100
		r := newRig(t, sub, o)
		r.start(time.Minute)
		for i := range 5 {
			for n := range 150 {
				r.offer(fmt.Sprintf("S%d/%d", i, n))
			}
		}
		for i := range 200 {
			begin := time.Now()
			id := fmt.Sprintf("H/%d", i)
			r.offer(id)
			time.Sleep(time.Second)
			if !r.hasEnded(id) {
				t.Fatalf("%s has not ended after a second, with 5 keys that are not reported", id)
			}
			if took := r.awaitEnd(id).at.Sub(begin); took > 100*time.Millisecond {
				t.Errorf("%s took %v with 5 keys that are not reported", id, took)
			}
		}
		if got := r.Stats().Overdue; len(got) == 0 {
			t.Error("nothing is overdue")
		}
		sub.change(func() { sub.rule = nil })
		for i := range 5 {
			for n := range 150 {
				sub.report(fmt.Sprintf("S%d/%d", i, n), nil)
			}
		}
		time.Sleep(10 * time.Minute)
		if got := r.debt.waiting(); len(got) > 0 {
			t.Errorf("%d wait in the end", len(got))
		}
	})
}

func TestPipeline_sendsNothingUnderTheNextLeadershipBeforeItHasAborted(t *testing.T) {
	for name, slow := range map[string]time.Duration{"quick": 0, "slow": 3 * time.Second, "too slow": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := newReporting()
				sub.hold, sub.slow = true, slow
				r := newRig(t, sub, manyAtOnce())
				r.start(time.Minute)
				r.offer("K/0", "L/0")
				synctest.Wait()
				begin := time.Now()
				r.Suspend()
				r.Suspend()
				r.offer("M/0")
				r.Resume()
				time.Sleep(time.Minute)
				sub.change(func() {
					if got, want := sub.at[2].Sub(begin), min(slow, settings().Timeout); got != want {
						t.Errorf("sent again after %v, want %v", got, want)
					}
				})
				sub.change(func() { sub.slow = 0 })
				if slow > time.Minute {
					r.Suspend() // what did not abort is told so again
					time.Sleep(time.Second)
					r.Resume()
				}
				synctest.Wait()
				sub.change(func() { sub.hold = false })
				for _, id := range []string{"K/0", "L/0", "M/0"} {
					sub.report(id, nil)
				}
				for _, e := range r.await(3) {
					if e.dead || e.attempts > 1 {
						t.Errorf("%+v, want delivered", e)
					}
				}
				if s := r.Stats(); s.BreakerOpen {
					t.Error("that a leadership ended was counted against the subscriber")
				}
			})
		})
	}
}

func TestPipeline_aStopWaitsForReportsThenAbortsAndOwesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			return 5 * time.Second, d.Key == "never", nil
		}
		o := manyAtOnce()
		o.Timeout = time.Hour
		r := newRig(t, sub, o)
		r.start(20 * time.Second)
		r.offer("K/0", "never/0", "never/1")
		synctest.Wait()
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < 20*time.Second || took > 22*time.Second {
			t.Errorf("the stop took %v, want the drain time", took)
		}
		if got, want := r.debt.waiting(), []string{"never/0", "never/1"}; !slices.Equal(got, want) || sub.aborts != 1 {
			t.Errorf("owed %v after %d aborts, want %v after one", got, sub.aborts, want)
		}
		if !r.hasEnded("K/0") {
			t.Error("K/0 was not waited for")
		}
	})
}

func TestPipeline_deadLettersAreWrittenBeforeTheKeyGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newReporting()
		sub.rule = func(d subscriber.Delivery) (time.Duration, bool, error) {
			if strings.HasSuffix(d.ID, "/1") {
				return time.Millisecond, false, subscriber.Permanent(errors.New("too large"))
			}
			return time.Millisecond, false, nil
		}
		r := newRig(t, sub, manyAtOnce())
		r.start(time.Minute)
		for i := range 20 {
			r.offer(series(fmt.Sprintf("K%d", i), 3)...)
		}
		dead := 0
		for _, e := range r.await(60) {
			if e.dead != strings.HasSuffix(e.id, "/1") {
				t.Errorf("%+v", e)
			}
			if e.dead {
				dead++
			}
		}
		if dead != 20 {
			t.Errorf("%d dead letters, want 20", dead)
		}
	})
}

// A panic of Send is an error of what it has not reported; what it had sent by then is aborted first.
type panicking struct {
	*reporting
	panics int
}

func (p *panicking) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	if p.panics--; p.panics < 0 {
		p.reporting.Send(ctx, deliveries, done)
		return
	}
	p.reporting.Send(ctx, deliveries[:1], done)
	panic("by plan")
}

func TestPipeline_aPanicOfSendIsAnErrorOfWhatItDidNotReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := &panicking{newReporting(), 1}
		sub.slow = time.Second
		r := newRig(t, sub, manyAtOnce())
		r.offer("K/0", "K/1", "L/0")
		r.start(time.Minute)
		for _, e := range r.await(3) {
			if e.dead {
				t.Errorf("%+v", e)
			}
		}
		if got := sub.ids(); got[0] != "K/0" || slices.Index(got[1:], "K/0") >= 0 || sub.aborts != 1 {
			t.Errorf("sent %v and aborted %d times, want K/0 once and one abort", got, sub.aborts)
		}
	})
}

func TestPipeline_aDeliveryCannotBeReportedTwiceOrWithoutBeingSent(t *testing.T) {
	for name, test := range map[string]struct {
		report func(done func(int, error))
		says   string
		open   bool // afterwards
	}{
		"twice":       {func(done func(int, error)) { done(0, nil); done(0, errors.New("lost")) }, `"reporting" reports delivery 0 of a Send of 1 twice, the second time as lost`, false},
		"not sent":    {func(done func(int, error)) { done(1, nil) }, `"reporting" reports delivery 1 (<nil>) of a Send of 1`, true},
		"below zero":  {func(done func(int, error)) { done(-1, nil) }, `reports delivery -1`, true},
		"after a day": {func(done func(int, error)) { done(0, nil); time.Sleep(24 * time.Hour); done(0, nil) }, "twice", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said := make(chan string, 1)
				sub := &sending{newReporting(), func(done func(int, error)) {
					go func() {
						defer func() {
							said <- fmt.Sprint(recover())
							if test.open {
								done(0, nil)
							}
						}()
						test.report(done)
					}()
				}}
				r := newRig(t, sub, manyAtOnce())
				r.start(time.Minute)
				r.offer("K/0")
				if got := <-said; !strings.Contains(got, test.says) {
					t.Errorf("panicked with %q, want %q", got, test.says)
				}
			})
		})
	}
}

// sending is a pipeline of one's own.
type sending struct {
	*reporting
	send func(done func(int, error))
}

func (s *sending) Send(_ context.Context, _ []subscriber.Delivery, done func(int, error)) {
	s.send(done)
}
