package lane_test

import (
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/lane"
)

// F-65: no number of failures, and no settings, make a wait of nothing or one beyond the cap.
func TestBackoff_staysBetweenFloorAndCap(t *testing.T) {
	for _, test := range []struct {
		name    string
		backoff lane.Backoff
		floor   time.Duration
		cap     time.Duration
	}{
		{"defaults", lane.Backoff{Initial: 200 * time.Millisecond, Max: 30 * time.Second}, 200 * time.Millisecond, 30 * time.Second},
		{"a second up to a day", lane.Backoff{Initial: time.Second, Max: 24 * time.Hour}, time.Second, 24 * time.Hour},
		{"up to the end of time", lane.Backoff{Initial: time.Second, Max: 1<<63 - 1}, time.Second, 1<<63 - 1},
		{"base 0", lane.Backoff{Max: time.Second}, 1, time.Second},
		{"cap smaller than base", lane.Backoff{Initial: time.Minute, Max: time.Second}, time.Second, time.Second},
		{"base equals cap", lane.Backoff{Initial: time.Second, Max: time.Second}, time.Second, time.Second},
		{"nothing set", lane.Backoff{}, 1, time.Millisecond},
		{"negative", lane.Backoff{Initial: -time.Second, Max: -time.Second}, 1, time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, failures := range []int{-1, 0, 1, 2, 12, 40, 63, 64, 65, 310, 100000, 1<<63 - 1} {
				for range 200 {
					if got := test.backoff.Wait(failures); got < test.floor || got > test.cap {
						t.Fatalf("after %d failures: got %v, want between %v and %v", failures, got, test.floor, test.cap)
					}
				}
			}
		})
	}
}

func TestBackoff_growsWithTheFailuresAndUsesItsWholeRange(t *testing.T) {
	backoff := lane.Backoff{Initial: time.Second, Max: time.Minute}
	for failures, ceiling := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 32 * time.Second, 7: time.Minute, 1000: time.Minute,
	} {
		least, most := time.Duration(1<<63-1), time.Duration(0)
		for range 2000 {
			wait := backoff.Wait(failures)
			least, most = min(least, wait), max(most, wait)
		}
		if most > ceiling {
			t.Errorf("after %d failures: waited %v, want at most %v", failures, most, ceiling)
		}
		// 2000 draws miss a tenth of the range at either end with a probability of 0.9^2000.
		tenth := (ceiling - time.Second) / 10
		if least > time.Second+tenth || most < ceiling-tenth {
			t.Errorf("after %d failures: waits between %v and %v, want them spread from %v to %v", failures, least, most, time.Second, ceiling)
		}
	}
}
