//go:build soak

package soak

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Printed, not asserted: how fast it is depends on the machine and on who else is at work there.
func TestSoak_commitToHandledAtAHundredCompletionsASecond(t *testing.T) {
	db := testdb.New(t)
	api := startAPI(t, db).AwaitAPI()
	relay := startRelay(t, db)
	ops := relay.AwaitStreaming()
	seconds := rounds(t, 30)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	var learners sync.WaitGroup
	for user := range 10 {
		learners.Go(func() {
			learner := testprogram.Learner{User: int64(user + 1)}
			every(ctx, 100*time.Millisecond, func() {
				if _, err := learner.Complete(ctx, api); err != nil && ctx.Err() == nil {
					t.Errorf("complete a lesson: %v", err)
				}
			})
		})
	}
	learners.Wait()
	testprogram.AwaitEffects(t, db)
	for _, name := range config.LessonKinds {
		t.Logf("%-16s %s", name, commitToHandled(t, ops, name))
	}
	relay.Stop()
	endLessonsByLosingTheSlot(t, db)
}

// The three in trouble must not be felt by the healthy one, and nothing of theirs may be lost.
func TestSoak_troubledSubscribersDoNotDelayTheHealthyOne(t *testing.T) {
	alone := testdb.New(t)
	withLedgers(alone, "healthy")
	before := underLoad(t, alone, relayOptions{subscribers: []string{"healthy"}})

	db := testdb.New(t)
	all := relayOptions{
		subscribers: []string{"healthy", "hanging", "failing", "choosy"},
		// A person would see many attempts as poison; here all of it has to come in the end.
		each: "timeout: 1s, stall_after: 2s, max_attempts: 1000000, retry: {initial: 100ms, max: 1s}",
	}
	withLedgers(db, all.subscribers...)
	behave(db, "hanging", "hang")
	behave(db, "failing", "down")
	behave(db, "choosy", "refuse key-0-7")
	with := underLoad(t, db, all)
	t.Logf("healthy alone: %s", before)
	t.Logf("with the others: %s", with)
}

// underLoad runs a relay under 500 events a second for a minute, reads the latency of "healthy", lets all
// subscribers recover, and checks that everything came in order.
func underLoad(t *testing.T, db *testdb.DB, o relayOptions) latency {
	t.Helper()
	relay := startLedgers(t, db, o)
	ops := relay.AwaitStreaming()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds(t, 60))*time.Second)
	defer cancel()
	insert(ctx, t, db, 0, 1, 500)
	written := db.Int(`SELECT count(*) FROM outbox`)
	testprogram.Eventually(t, "the healthy one to have everything", func() bool {
		return db.Int(`SELECT count(*) FROM soak.ledger WHERE subscriber = 'healthy'`) >= written
	})
	measured := commitToHandled(t, ops, "healthy")
	for _, name := range o.subscribers {
		behave(db, name, "ok")
	}
	testprogram.AwaitPublished(t, db, 2*time.Minute)
	wantAll(t, db, o.subscribers...)
	wantOrder(t, db)
	relay.Stop()
	endByLosingTheSlot(t, db, o)
	return measured
}

// latency is a distribution as the metrics have it.
type latency struct {
	count    float64
	p50, p99 time.Duration
}

func (l latency) String() string {
	return fmt.Sprintf("p50 %s, p99 %s over %.0f events", l.p50.Round(100*time.Microsecond), l.p99.Round(100*time.Microsecond), l.count)
}

// commitToHandled reads walpost_commit_to_ack_seconds of a relay.
func commitToHandled(t *testing.T, ops, name string) latency {
	t.Helper()
	return histogramOf(t, ops, name).latency()
}

// histogram is that metric as it is: counts of what took at most so many seconds.
type histogram struct{ bounds, counts []float64 }

// since takes away what was counted earlier.
func (h histogram) since(earlier histogram) histogram {
	counts := slices.Clone(h.counts)
	for i := range counts {
		counts[i] -= earlier.counts[i]
	}
	return histogram{h.bounds, counts}
}

func (h histogram) latency() latency {
	return latency{
		count: h.counts[len(h.counts)-1],
		p50:   quantile(h.bounds, h.counts, 0.50),
		p99:   quantile(h.bounds, h.counts, 0.99),
	}
}

func histogramOf(t *testing.T, ops, name string) histogram {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var bounds, counts []float64
	line := regexp.MustCompile(`(?m)^walpost_commit_to_ack_seconds_bucket\{subscriber="` + name + `",le="([^"]+)"\} (\S+)$`)
	for _, found := range line.FindAllStringSubmatch(string(page), -1) {
		bound, err := strconv.ParseFloat(found[1], 64) // reads +Inf, too
		if err != nil {
			t.Fatal(err)
		}
		count, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		bounds, counts = append(bounds, bound), append(counts, count)
	}
	if len(counts) == 0 || counts[len(counts)-1] == 0 {
		t.Fatalf("the metrics have no latency of %s", name)
	}
	return histogram{bounds, counts}
}

// quantile interpolates within a bucket of a cumulative histogram, as Prometheus' histogram_quantile does.
func quantile(bounds, counts []float64, q float64) time.Duration {
	rank := q * counts[len(counts)-1]
	var lower, below float64
	for i, bound := range bounds {
		if counts[i] >= rank {
			if math.IsInf(bound, 1) {
				return time.Duration(lower * float64(time.Second))
			}
			seconds := lower + (bound-lower)*(rank-below)/max(1, counts[i]-below)
			return time.Duration(seconds * float64(time.Second))
		}
		lower, below = bound, counts[i]
	}
	return 0
}
