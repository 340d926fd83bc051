package wal

import (
	"math"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// rateWindows are the times over which the rate of the WAL is taken. The highest of the rates counts: a burst of a minute
// says what comes if it lasts, and the longest window remembers the busy hours of a day.
var rateWindows = []time.Duration{time.Minute, 15 * time.Minute, 6 * time.Hour}

// sampleEvery keeps the samples of the longest window to about a thousand.
const sampleEvery = 20 * time.Second

// walRate is how fast a server writes WAL, from samples of where its WAL ends. The zero value has none.
type walRate struct {
	samples []walSample // the oldest first, sampleEvery apart but for the last
}

type walSample struct {
	at  time.Time
	end event.LSN
}

// add notes where the WAL ends. A server that has gone back, such as one that was restored, starts again.
func (r *walRate) add(at time.Time, end event.LSN) {
	last := len(r.samples) - 1
	switch {
	case last >= 0 && end < r.samples[last].end:
		r.samples = r.samples[:0]
	case last >= 1 && r.samples[last].at.Sub(r.samples[last-1].at) < sampleEvery:
		r.samples = r.samples[:last] // the last one was only there to be the last
	}
	r.samples = append(r.samples, walSample{at, end})
	longest := rateWindows[len(rateWindows)-1]
	for len(r.samples) > 1 && at.Sub(r.samples[1].at) >= longest {
		r.samples = r.samples[1:]
	}
}

// worst is the highest of the rates over the windows, in bytes a second; 0 before there are two samples. A window that is
// longer than what was seen takes all of it.
func (r *walRate) worst() float64 {
	if len(r.samples) < 2 {
		return 0
	}
	last := r.samples[len(r.samples)-1]
	worst := 0.0
	for _, window := range rateWindows {
		from := r.samples[0]
		for _, s := range r.samples[1 : len(r.samples)-1] {
			if last.at.Sub(s.at) < window {
				break
			}
			from = s
		}
		if took := last.at.Sub(from.at).Seconds(); took > 0 {
			worst = max(worst, float64(last.end-from.end)/took)
		}
	}
	return worst
}

// secondsLeft is how long it takes at a rate, in bytes a second, to write what may still be written: +Inf where nothing
// limits it (safe is nil) or nothing is written.
func secondsLeft(safe *int64, rate float64) float64 {
	switch {
	case safe == nil:
		return math.Inf(1)
	case *safe <= 0:
		return 0
	case rate <= 0:
		return math.Inf(1)
	}
	return float64(*safe) / rate
}
