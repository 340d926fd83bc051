package wal

import (
	"math"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

func TestWALRate_isTheHighestOfItsWindows(t *testing.T) {
	const mb = 1 << 20
	type part struct {
		lasts time.Duration
		rate  float64 // bytes a second
	}
	for _, test := range []struct {
		name  string
		parts []part
		want  float64
	}{
		{"nothing yet", nil, 0},
		{"steady", []part{{time.Hour, mb}}, mb},
		{"a burst of the last minute", []part{{7 * time.Hour, mb}, {time.Minute, 20 * mb}}, 20 * mb},
		{"a burst that ended an hour ago counts with its share of six hours", []part{{4 * time.Hour, 0}, {time.Hour, 6 * mb}, {time.Hour, 0}}, mb},
		{"what is more than six hours ago counts no more", []part{{time.Hour, 50 * mb}, {7 * time.Hour, mb}}, mb},
		{"a quiet minute after a busy quarter", []part{{14 * time.Minute, 15 * mb}, {time.Minute, 0}}, 14 * mb},
		{"young", []part{{10 * time.Second, 3 * mb}}, 3 * mb},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r walRate
			at, end := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC), event.LSN(0)
			for _, p := range test.parts {
				for passed := time.Duration(0); passed < p.lasts; passed += 5 * time.Second {
					r.add(at, end)
					at, end = at.Add(5*time.Second), end+event.LSN(5*p.rate)
				}
			}
			if len(test.parts) > 0 {
				r.add(at, end)
			}
			if got := r.worst(); math.Abs(got-test.want) > 0.05*test.want {
				t.Errorf("%.2f MB/s, want about %.2f", got/mb, test.want/mb)
			}
			if most := int(6*time.Hour/sampleEvery) + 3; len(r.samples) > most {
				t.Errorf("%d samples are kept, want %d at most", len(r.samples), most)
			}
		})
	}
}

func TestWALRate_beginsAgainWithAServerThatHasGoneBack(t *testing.T) {
	var r walRate
	at := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	r.add(at, 1<<40)
	r.add(at.Add(time.Minute), 2<<40)
	r.add(at.Add(2*time.Minute), 1<<20)
	if got := r.worst(); got != 0 {
		t.Errorf("%v bytes a second of another server's WAL", got)
	}
	r.add(at.Add(3*time.Minute), 1<<20+600)
	if got := r.worst(); got != 10 {
		t.Errorf("%v bytes a second, want 10", got)
	}
}

func TestSecondsLeft(t *testing.T) {
	bytes := func(n int64) *int64 { return &n }
	for _, test := range []struct {
		name string
		safe *int64
		rate float64
		want float64
	}{
		{"no limit", nil, 100, math.Inf(1)},
		{"nothing is written", bytes(1000), 0, math.Inf(1)},
		{"some", bytes(1000), 100, 10},
		{"none left", bytes(0), 0, 0},
		{"beyond it", bytes(-5), 100, 0},
	} {
		if got := secondsLeft(test.safe, test.rate); got != test.want {
			t.Errorf("%s: %v s, want %v", test.name, got, test.want)
		}
	}
}
