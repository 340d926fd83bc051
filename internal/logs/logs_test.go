package logs_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/logs"
)

// reader is an output that takes a line only when it is read, and fails while broken.
type reader struct {
	mu     sync.Mutex
	lines  []string // guarded by mu
	open   chan struct{}
	broken bool // guarded by mu
}

func (r *reader) Write(line []byte) (int, error) {
	if r.open != nil {
		<-r.open
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken {
		return 0, errors.New("broken pipe")
	}
	r.lines = append(r.lines, strings.TrimSpace(string(line[:min(len(line), 20)])))
	return len(line), nil
}

func (r *reader) setBroken(broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = broken
}

func (r *reader) read() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func report(out io.Writer, dropped int64) error {
	_, err := fmt.Fprintf(out, "%d dropped\n", dropped)
	return err
}

func TestWriter_keepsTheOrderOfLines(t *testing.T) {
	var out reader
	w := logs.NewWriter(&out, report)
	var want []string
	for n := range 1000 {
		want = append(want, fmt.Sprint("line ", n))
		fmt.Fprintln(w, "line", n)
	}
	w.Flush(time.Minute)
	if got := out.read(); !slices.Equal(got, want) {
		t.Errorf("%d lines arrived, want %d in order", len(got), len(want))
	}
	if got := w.Dropped(); got != 0 {
		t.Errorf("%d lines dropped, want 0", got)
	}
}

func TestWriter_dropsAndCountsWhileItsOutputIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := reader{open: make(chan struct{})}
		w := logs.NewWriter(&out, report)
		large := strings.Repeat("x", 512<<10)
		begin := time.Now()
		for n := range 10 { // two of them have room
			fmt.Fprintln(w, n, large[:512<<10-4])
			synctest.Wait() // the output has the first, and nothing is taken of the rest
		}
		w.Flush(time.Second)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("ten lines and a flush of a second took %s", took)
		}
		if got := w.Dropped(); got != 8 {
			t.Errorf("%d lines dropped, want 8", got)
		}
		close(out.open)
		w.Flush(time.Minute)
		fmt.Fprintln(w, "after")
		w.Flush(time.Minute)
		got := out.read()
		for i := range got {
			got[i], _, _ = strings.Cut(got[i], " x")
		}
		if want := []string{"0", "1", "8 dropped", "after"}; !slices.Equal(got, want) {
			t.Errorf("arrived: %q, want %q", got, want)
		}
	})
}

func TestWriter_goesOnAfterAnOutputThatWasBroken(t *testing.T) {
	out := reader{broken: true}
	w := logs.NewWriter(&out, report)
	for n := range 3 {
		fmt.Fprintln(w, "lost", n)
	}
	w.Flush(time.Minute)
	if got := w.Dropped(); got != 3 {
		t.Errorf("%d lines dropped, want 3", got)
	}
	out.setBroken(false)
	fmt.Fprintln(w, "after")
	w.Flush(time.Minute)
	if got, want := out.read(), []string{"3 dropped", "after"}; !slices.Equal(got, want) {
		t.Errorf("arrived: %q, want %q", got, want)
	}
}
