package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/logs"
)

// lastLines is how long the end of the program waits for somebody to read what it has to say.
const lastLines = 200 * time.Millisecond

// serviceLog is the log of a command that serves: it never makes the command wait for its reader.
type serviceLog struct {
	*slog.Logger
	writer *logs.Writer
}

// newServiceLog logs to out, which may be a pipe that nobody reads. The caller flushes it in the end.
func newServiceLog(out io.Writer, newHandler func(io.Writer) slog.Handler) serviceLog {
	// Without this a reader that ends takes the process with it at the next line.
	// (package os/signal, "SIGPIPE")
	signal.Ignore(syscall.SIGPIPE)
	writer := logs.NewWriter(out, func(out io.Writer, dropped int64) error {
		line := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of this log are missing here: it was not read", 0)
		line.Add("dropped", dropped)
		return newHandler(out).Handle(context.Background(), line)
	})
	return serviceLog{slog.New(newHandler(writer)), writer}
}

// flush lets the last lines arrive, if somebody reads them.
func (l serviceLog) flush() { l.writer.Flush(lastLines) }

// register shows the lines that were dropped as a metric.
func (l serviceLog) register(registry prometheus.Registerer) {
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "walpost_log_lines_dropped_total", Help: "Lines of the log that were dropped because nothing read them.",
	}, func() float64 { return float64(l.writer.Dropped()) }))
}

// printLast is Fprintln for the last words of the program: an output that is not read must not keep it from
// ending.
func printLast(out io.Writer, words ...any) {
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		fmt.Fprintln(out, words...)
	}()
	select {
	case <-printed:
	case <-time.After(lastLines):
	}
}
