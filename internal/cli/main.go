// Package cli is the command line: the options of each command, and what it prints. It holds no rules of its own:
// what serves is built and stopped by package app, what people may see and change is in package admin.
package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
)

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
		err = parsed.Run(&run{Process: process, ctx: ctx, parser: parser, parsed: parsed, main: Main})
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
