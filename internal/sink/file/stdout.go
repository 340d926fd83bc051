package file

import (
	"context"
	"fmt"
	"io"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Stdout is a subscriber that writes to a stream, standard output: what a reader has taken is not known, so an event
// counts as delivered when it is written. Its calls take turns.
type Stdout struct {
	name     string
	format   string
	envelope envelope.Writer
	out      io.Writer
	turn     chan struct{} // holds one token while no write is under way
	torn     bool          // the last write has left a part of a line; owned by who holds the token
}

// NewStdout makes the subscriber. format is one of the formats of a line; the error is a mistake in it.
func NewStdout(name, format string, w envelope.Writer, out io.Writer) (*Stdout, error) {
	for _, problem := range StdoutProblems(format) {
		return nil, fmt.Errorf("%s: %w", problem.Key, problem.Err)
	}
	s := &Stdout{name: name, format: format, envelope: w, out: out, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s, nil
}

// StdoutProblems tells what is wrong with a format.
func StdoutProblems(format string) []Problem { return formatProblems(format) }

// Name implements subscriber.Subscriber.
func (s *Stdout) Name() string { return s.name }

// Wants implements subscriber.Subscriber: which events go where is a matter of configuration.
func (s *Stdout) Wants(string) bool { return true }

// Handle writes one line.
func (s *Stdout) Handle(ctx context.Context, d subscriber.Delivery) error {
	return s.HandleBatch(ctx, []subscriber.Delivery{d})
}

// HandleBatch writes a line for each delivery. A reader that has stopped reading, or has gone, is Away. A write that it
// holds up is finished when the reader comes back, and until then no other begins: its events come again.
func (s *Stdout) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return subscriber.Away(fmt.Errorf("standard output takes nothing: %w", context.Cause(ctx)))
	}
	var lines []byte
	if s.torn {
		lines = append(lines, '\n')
	}
	lines = appendLines(lines, s.envelope, s.format, deliveries)
	written := make(chan error, 1)
	go func() {
		n, err := s.out.Write(lines)
		if n > 0 {
			s.torn = n < len(lines) && lines[n-1] != '\n'
		}
		s.turn <- struct{}{}
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			return subscriber.Away(fmt.Errorf("write to standard output: %w", err))
		}
		return nil
	case <-ctx.Done():
		return subscriber.Away(fmt.Errorf("standard output takes nothing: %w", context.Cause(ctx)))
	}
}
