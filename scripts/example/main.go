// Example runs one of the examples in deploy/examples. The first argument is a binary of walpost, the second the name.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/backendstart/walpost/internal/examples"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
)

func main() {
	natstest.Main()
	if len(os.Args) != 3 || os.Args[2] == "" {
		fmt.Fprintf(os.Stderr, "make example NAME=…: there are %v\n", examples.Names())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	program, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = examples.Run(ctx, program, filepath.Join("deploy", "examples", filepath.Base(os.Args[2])), os.Stdout)
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
