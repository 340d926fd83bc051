package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/relay"
)

type tailCommand struct {
	config.File
	config.Ask
	Subscriber string `placeholder:"NAME" help:"Attempts at this subscriber."`
	Type       string `placeholder:"TYPE" help:"Events of this type."`
	Key        string `placeholder:"KEY" help:"Events of this key."`
	Event      string `placeholder:"ID" help:"This event."`
	Outcome    string `enum:"any,delivered,failed,dead" default:"any" placeholder:"OUTCOME" help:"delivered, failed or dead."`
	Last       int    `short:"n" default:"10" placeholder:"N" help:"Show this many past attempts first, of the 10000 that the relay remembers."`
	JSON       bool   `name:"json" help:"Print a JSON object per line."`
}

func (tailCommand) Help() string {
	return `Examples:

  walpost tail
  walpost tail --outcome failed --subscriber analytics
  walpost tail --json -n 0 | jq -r .event

Asks the relay at its ops address until Ctrl-C, and connects again when the relay restarts. Times are local. If the terminal is slower than the relay, tail leaves attempts out and says so; the relay never waits.

Next: walpost event ID`
}

// Validate is called by kong.
func (c tailCommand) Validate() error {
	if c.Last < 0 {
		return config.Invalid(errors.New("-n: must not be negative"))
	}
	return nil
}

func (c tailCommand) Run(r *run) error {
	relay, err := askRelay(r, c.Ask)
	if err != nil {
		return err
	}
	return (&tail{tailCommand: c, relay: relay, out: r.Stdout, err: r.Stderr, wait: time.Second}).run(r.ctx)
}

// tail is one run of the command.
type tail struct {
	tailCommand
	relay    *asked
	out, err io.Writer
	wait     time.Duration // between attempts to reach the relay
	after    uint64        // up to which attempt the relay has told all
}

// run follows until ctx ends. A relay that goes away is waited for; one that was never there is an error.
func (t *tail) run(ctx context.Context) error {
	defer t.relay.client.CloseIdleConnections()
	for connected := false; ; {
		stream, err := t.connect(ctx)
		var refused refusedError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refused), err != nil && !connected:
			return err
		case err == nil && connected:
			fmt.Fprintln(t.err, "walpost: the relay answers again")
		}
		if err == nil {
			connected = true
			err = t.print(stream)
			stream.Close()
			var failed outputError
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.As(err, &failed), errors.As(err, &refused):
				return err
			}
			fmt.Fprintf(t.err, "walpost: the relay at %s does not answer any more; waiting for it\n", t.relay.url)
		}
		select {
		case <-time.After(t.wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// connect opens a stream that goes on where the last one ended.
func (t *tail) connect(ctx context.Context) (io.ReadCloser, error) {
	query := url.Values{"follow": {"true"}, "limit": {strconv.Itoa(min(t.Last, 10000))}}
	for name, value := range map[string]string{
		"subscriber": t.Subscriber, "type": t.Type, "key": t.Key, "event": t.Event, "outcome": strings.TrimPrefix(t.Outcome, "any"),
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if t.after > 0 {
		query.Set("after", strconv.FormatUint(t.after, 10))
	}
	return t.relay.open(ctx, "/v1/attempts", query)
}

// outputError is one of writing what was read.
type outputError struct{ error }

// print writes lines until the stream ends, which it does with an error.
func (t *tail) print(stream io.Reader) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxLine)
	for {
		if !lines.Scan() {
			if errors.Is(lines.Err(), bufio.ErrTooLong) {
				return refusedError{fmt.Errorf("ask the relay at %s: it does not answer as walpost does: a line longer than %d bytes", t.relay.url, maxLine)}
			}
			return cmp.Or(lines.Err(), io.EOF)
		}
		raw := lines.Bytes()
		var line admin.Line
		if err := json.Unmarshal(raw, &line); err != nil {
			return err
		}
		if t.after = max(t.after, line.After); line.Attempt != nil {
			t.after = line.Seq
		}
		var err error
		switch {
		case line.After > 0: // where it stands
		case t.JSON:
			_, err = fmt.Fprintf(t.out, "%s\n", raw)
		case line.Missed > 0:
			fmt.Fprintf(t.err, "walpost: %s left out, because attempts came faster than they were printed, whether the filters fit them or not\n", printable.Count(int64(line.Missed), "attempt", "is"))
		case line.Attempt != nil:
			_, err = io.WriteString(t.out, attemptLine(*line.Attempt))
		}
		if err != nil {
			return outputError{err}
		}
	}
}

// attemptLine is an attempt for people.
func attemptLine(a relay.Attempt) string {
	line := fmt.Sprintf("%s  %s  %-9s  %s  %s  key %s  attempt %d, %s",
		a.At.Local().Format("15:04:05.000"), plain(a.Subscriber, 64), a.Outcome, plain(a.Event, 64), plain(a.Type, 64), plain(a.Key, 40), a.Number, took(a))
	if a.Error != "" {
		line += ": " + plain(a.Error, 200)
	}
	return line + "\n"
}

// took is how long an attempt took, to three digits, and with what it shared that time.
func took(a relay.Attempt) string {
	d := time.Duration(a.Seconds * float64(time.Second))
	unit := time.Microsecond
	for d >= 100*unit && unit < time.Hour {
		unit *= 10
	}
	text := d.Round(unit / 10).String()
	if a.Batch > 1 {
		text += fmt.Sprintf(" in a batch of %d", a.Batch)
	}
	if a.Replay {
		text += ", a replay"
	}
	return text
}
