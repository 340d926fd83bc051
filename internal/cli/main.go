// Package cli is the command line: the options of each command, and what it prints. It holds no rules of its own:
// what serves is built and stopped by package app, what people may see and change is in package admin.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
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

// Main runs the command that the arguments name until it is done or ctx ends, which is a soft stop: what
// is held is finished within the drain time. It returns the exit code.
func Main(ctx context.Context, process Process) int {
	if process.Subscribers == nil {
		process.Subscribers = app.Subscribers()
	}
	process.Stdout, process.Stderr = &printable.Writer{Out: process.Stdout}, &printable.Writer{Out: process.Stderr}
	shown := false // --help has been asked for and answered
	var commands commands
	parser, err := config.NewParser(&commands, process.Lookup, process.Subscribers.Config(),
		kong.Name("walpost"), kong.Description(description), kong.Writers(process.Stdout, process.Stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true, WrapUpperBound: 110}),
		benchVars(),
		kong.Exit(func(int) { shown = true }))
	if err != nil {
		panic(err) // the model is wrong, not the input
	}
	parser.Delivers = func(command string) bool { return command == "relay" || command == "config" }
	parsed, err := parser.Parse(expected(process.Args))
	if shown {
		return exitFine
	}
	if i := slices.IndexFunc(process.Args, func(arg string) bool { return !utf8.ValidString(arg) }); err == nil && i >= 0 {
		err = config.Invalid(fmt.Errorf("%q is no valid UTF-8", process.Args[i])) // Postgres would refuse it, in other words
	}
	if err == nil && parser.Found && !slices.Contains([]string{"relay", "api"}, parsed.Command()) { // these log it
		fmt.Fprintf(process.Stderr, "walpost: options come from %s of this directory\n", parser.Path)
	}
	if err == nil {
		err = parsed.Run(&run{Process: process, ctx: ctx, parser: parser, parsed: parsed})
	}
	var usage *config.Error
	var setup *wal.SetupError
	var refused debt.Refused
	switch {
	case err == nil:
		return exitFine
	case errors.As(err, &usage), errors.As(err, &refused), errors.As(err, &setup), errors.Is(err, migrations.ErrBehind), errors.Is(err, migrations.ErrAhead):
		logs.PrintLast(process.Stderr, "walpost:", err)
		return exitUsage
	default:
		logs.PrintLast(process.Stderr, "walpost:", err)
		return exitFailed
	}
}

// expected turns what people try first into what there is.
func expected(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

// run is what a command gets in addition to its options.
type run struct {
	Process
	ctx    context.Context // of the program; a run is a parameter, not a part that keeps it
	parser *config.Parser
	parsed *kong.Context
}

// readable writes a duration with its unit, in JSON too, where slog has a number of nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
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
