package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// LastLines is how long the end of the program waits for someone to read what it has to say.
const LastLines = 200 * time.Millisecond

// Service is the log of a command that serves: it never makes the command wait for its reader.
type Service struct {
	*slog.Logger
	writer *Writer
}

// NewService logs to out, which may be a pipe that no one reads. The caller flushes it in the end.
func NewService(out io.Writer, newHandler func(io.Writer) slog.Handler) Service {
	// Without this a reader that ends takes the process with it at the next line.
	// (package os/signal, "SIGPIPE")
	signal.Ignore(syscall.SIGPIPE)
	writer := NewWriter(out, func(out io.Writer, dropped int64) error {
		line := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of this log are missing here: it was not read", 0)
		line.Add("dropped", dropped)
		return newHandler(out).Handle(context.Background(), line)
	})
	return Service{slog.New(newHandler(writer)), writer}
}

// Flush lets the last lines arrive, if someone reads them.
func (l Service) Flush() { l.writer.Flush(LastLines) }

// Register shows the lines that were dropped as a metric.
func (l Service) Register(registry prometheus.Registerer) {
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "walpost_log_lines_dropped_total", Help: "Lines of the log that were dropped because nothing read them.",
	}, func() float64 { return float64(l.writer.Dropped()) }))
}

// PrintLast is Fprintln for the last words of the program: an output that is not read must not keep it from
// ending.
func PrintLast(out io.Writer, words ...any) {
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		fmt.Fprintln(out, words...)
	}()
	select {
	case <-printed:
	case <-time.After(LastLines):
	}
}
