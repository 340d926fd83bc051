// Command walpost delivers what is committed to a Postgres outbox table. See walpost --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/backendstart/walpost/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal is a soft stop. After it signals do again what they do to every program, so a
	// second one ends this at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Main(ctx, cli.Process{
		Args:   os.Args[1:],
		Lookup: os.LookupEnv,
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
	}))
}
