package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
)

// peak is the most memory that the relay of a case has had.
type peak struct {
	name  string
	bytes int64
}

// notePeak remembers how much memory a relay of the current case has had at most, or -1 where no one can
// tell.
func (l *lab) notePeak(relay *child) {
	bytes, err := relay.peak()
	if err != nil {
		bytes = -1
	}
	i := slices.IndexFunc(l.peaks, func(p peak) bool { return p.name == l.current })
	if i < 0 {
		l.peaks = append(l.peaks, peak{l.current, bytes})
		return
	}
	l.peaks[i].bytes = max(l.peaks[i].bytes, bytes)
}

// reportPeaks adds a row for each case in which a relay ran: the highest peak of all its turns.
func (l *lab) reportPeaks() {
	for _, p := range l.peaks {
		l.current = p.name
		b := bar{what: "peak memory, " + p.name, unit: "MiB", atMost: true, bar: 96, aim: 64}
		if p.name == "memory" {
			b.what = fmt.Sprintf("peak memory, one transaction of %s rows of %d bytes, slow subscribers", number(float64(10*l.Events)), largePayload)
		}
		if p.bytes < 0 {
			l.notRun("the memory of a process is read from /proc, which "+runtime.GOOS+" does not have", b)
			continue
		}
		l.absolute(b, "", float64(p.bytes)/(1<<20))
	}
}

const largePayload = 1000

// memory has a relay take in one transaction of ten times as many events, of a kilobyte each, with
// subscribers that are slower than the stream: whatever is bounded by the settings is full all the time.
func memory(ctx context.Context, l *lab) error {
	l.step("memory: one huge transaction, slow subscribers")
	if _, err := l.backlog(ctx, "huge", 10*l.Events, largePayload); err != nil {
		return err
	}
	_, err := l.drain(ctx, noops("bench-slow", l.Subscribers), 10*l.Events, l.Subscribers)
	return err
}
