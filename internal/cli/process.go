package cli

import (
	"context"
	"io"
	"log/slog"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/mask"
)

// Exit codes of the program.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2 // wrong usage, configuration or set-up: trying again without a change is no use
)

// Process is what the program has from the operating system, so that a test can start the same program.
type Process struct {
	Args   []string                    // without the program's name
	Lookup func(string) (string, bool) // os.LookupEnv
	// Stdin is where a person answers; nil, or what is no terminal, and no one is asked.
	Stdin io.Reader
	// Stdout takes data, Stderr logs, questions and errors.
	Stdout, Stderr io.Writer
	// Subscribers are the kinds that a configuration can name; nil is app.Subscribers().
	Subscribers app.Kinds
}

// run is what a command gets in addition to its options.
type run struct {
	Process
	ctx    context.Context // of the program; a run is a parameter, not a part that keeps it
	parser *config.Parser
	parsed *kong.Context
	main   func(context.Context, Process) int // Main, for a command that runs another one
}

func (r *run) logger(options config.Log, out io.Writer) *slog.Logger {
	return slog.New(r.logHandler(options, nil)(out))
}

// logHandler makes the handler that the options ask for, for any output. Its lines have no secret of the mask.
func (r *run) logHandler(options config.Log, secrets *mask.Mask) func(io.Writer) slog.Handler {
	handler := &slog.HandlerOptions{Level: options.LogLevel, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		return secrets.Attr(readable(groups, a))
	}}
	asJSON := options.LogFormat == "json" || options.LogFormat == "auto" && !isTerminal(r.Stderr)
	return func(out io.Writer) slog.Handler {
		if asJSON {
			return slog.NewJSONHandler(out, handler)
		}
		return slog.NewTextHandler(out, handler)
	}
}

// readable writes a duration with its unit, in JSON too, where slog has a number of nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
