// Package logs carries the lines of the program's log to where people read them, without ever making the
// goroutine wait that logs. It must never block: a terminal that is stopped and a collector that does not read
// its pipe are no reason to deliver nothing. It knows no format; package app gives it slog handlers.
package logs

import (
	"io"
	"sync"
	"time"
)

// capacity is how many bytes of lines wait for a reader before lines are dropped: some thousands of lines.
const capacity = 1 << 20

// Writer hands each Write, which is one line, to an output that may block. It is safe for concurrent use.
//
// Invariant: lines keep their order, and where some were dropped a line of Report stands in their place.
type Writer struct {
	out    io.Writer
	report Report

	mu      sync.Mutex
	queue   []entry       // guarded by mu
	size    int           // bytes in the queue; guarded by mu
	unsaid  int64         // lines dropped since the last report was queued; guarded by mu
	dropped int64         // lines dropped ever; guarded by mu
	idle    chan struct{} // closed when everything was written, nil while no goroutine writes; guarded by mu
}

// Report writes a line that says how many lines were dropped.
type Report func(out io.Writer, dropped int64) error

// entry is a line, or the report of dropped ones.
type entry struct {
	line    []byte
	dropped int64
}

// NewWriter returns a writer to out. Without a report nothing stands in the place of dropped lines.
func NewWriter(out io.Writer, report Report) *Writer { return &Writer{out: out, report: report} }

// Write implements io.Writer. It copies the line, never blocks and never fails.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size+len(line) > capacity {
		w.unsaid++
		w.dropped++
		return len(line), nil
	}
	w.reportLocked()
	w.queue = append(w.queue, entry{line: append([]byte(nil), line...)})
	w.size += len(line)
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.drain()
	}
	return len(line), nil
}

// reportLocked queues the report of what was dropped so far.
func (w *Writer) reportLocked() {
	if w.unsaid > 0 && w.report != nil {
		w.queue = append(w.queue, entry{dropped: w.unsaid})
		w.unsaid = 0
	}
}

// drain writes until nothing is queued.
func (w *Writer) drain() {
	works := true // the last write worked, so that a report would arrive
	for {
		w.mu.Lock()
		if works {
			w.reportLocked()
		}
		if len(w.queue) == 0 {
			close(w.idle)
			w.idle = nil
			w.mu.Unlock()
			return
		}
		next := w.queue[0]
		w.queue[0] = entry{}
		if w.queue = w.queue[1:]; len(w.queue) == 0 {
			w.queue = nil
		}
		w.mu.Unlock()

		var err error
		if next.dropped > 0 {
			err = w.report(w.out, next.dropped)
		} else {
			_, err = w.out.Write(next.line)
		}
		works = err == nil
		w.mu.Lock()
		// Room is made only now: what the output has not taken yet counts.
		w.size -= len(next.line)
		if !works {
			w.unsaid += max(1, next.dropped)
			if next.dropped == 0 {
				w.dropped++
			}
		}
		w.mu.Unlock()
	}
}

// Dropped is how many lines did not arrive.
func (w *Writer) Dropped() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Flush waits until every line has been written, at most for limit.
func (w *Writer) Flush(limit time.Duration) {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
