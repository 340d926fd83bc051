package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
)

// owedCommand is `walpost owed`.
type owedCommand struct {
	List    owedList    `cmd:"" help:"List deliveries in the order in which they are sent."`
	Show    owedShow    `cmd:"" help:"Show everything about an event that is owed, with its payload."`
	Redrive owedRedrive `cmd:"" help:"Send dead deliveries again."`
	Discard owedDiscard `cmd:"" help:"Give deliveries up for good."`
	Add     owedAdd     `cmd:"" help:"Send a subscriber events of the outbox again, or make waiting deliveries dead."`
}

func (owedCommand) Help() string {
	return `Shows and changes what subscribers are owed: one event for one subscriber is a delivery.

  walpost owed list --subscriber analytics --limit 20
  walpost deadletters list --error "connection refused" --since 2h
  walpost owed show 01M8KYWXP684RBZYHB26RMQSXQ
  walpost deadletters redrive 01M8KYWXP684RBZYHB26RMQSXQ --why "the receiver is fixed"
  walpost deadletters discard --event 01M8KYWXP684RBZYHB26RMQSXQ --why "test data" --dry-run

A waiting delivery is sent by itself. A dead one is sent again when a person redrives it. deadletters is the same command for the dead ones. Works on the database, with the relay up or down.`
}

// deadlettersCommand is `walpost deadletters`: the same commands with --state=dead.
type deadlettersCommand struct{ owedCommand }

// AfterApply is called by kong when the options are read.
func (c *deadlettersCommand) AfterApply() error {
	for _, state := range []*string{&c.List.State, &c.Show.State, &c.Redrive.State, &c.Discard.State, &c.Add.State} {
		if *state == string(lane.StateWaiting) {
			return config.Invalid(errors.New("--state: dead letters are dead: walpost owed has those that wait"))
		}
		*state = string(lane.StateDead)
	}
	return nil
}

type owedList struct {
	adminOptions
	filterOptions
	Limit int `default:"100" placeholder:"N" help:"Show at most this many deliveries."`
}

func (c owedList) Validate() error {
	return config.Invalid(errors.Join(c.adminOptions.Validate(), checkLimit(c.Limit)))
}

func (c owedList) Run(r *run) error {
	filter := c.filter()
	filter.Limit = c.Limit
	return c.at(r, func(service *admin.Service) error {
		deliveries, more, err := service.Owed(r.ctx, filter)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, map[string]any{"owed": deliveries, "more": more})
		}
		printOwed(r.Stdout, deliveries, more)
		return nil
	})
}

func printOwed(w io.Writer, deliveries []admin.Delivery, more bool) {
	if len(deliveries) == 0 {
		fmt.Fprintln(w, "Nothing is owed that fits.")
		return
	}
	now := time.Now()
	rows := [][]string{{"SUBSCRIBER", "STATE", "EVENT", "TYPE", "KEY", "AGE", "ATTEMPTS", "ERROR"}}
	for _, d := range deliveries {
		reason := d.Error
		if reason == "" {
			reason = d.Invalid
		}
		rows = append(rows, []string{
			plain(d.Subscriber, 64), string(d.State), plain(d.Event, 64), plain(d.Type, 40), plain(d.Key, 40),
			age(now, d.Since()), strconv.Itoa(d.Attempts), plain(reason, 80),
		})
	}
	columns(w, rows)
	if more {
		fmt.Fprintf(w, "\nThere are more than these %d: --limit shows more, the filters fewer.\n", len(deliveries))
	}
}

type owedShow struct {
	adminOptions
	Event string `arg:"" help:"Event id."`
	State string `kong:"-"` // "" is any
}

func (owedShow) Help() string {
	return `Examples:

  walpost owed show 01M8KYWXP684RBZYHB26RMQSXQ

Payload and headers are as Postgres gave them. If no copy is kept, they are read from the outbox row.`
}

func (c owedShow) Run(r *run) error {
	return c.at(r, func(service *admin.Service) error {
		deliveries, err := service.Show(r.ctx, c.Event)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, map[string]any{"owed": deliveries})
		}
		for _, d := range deliveries {
			if c.State == "" || string(d.State) == c.State {
				printDelivery(r.Stdout, d)
			}
		}
		return nil
	})
}

func printDelivery(w io.Writer, d admin.Delivery) {
	now := time.Now()
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "  %-13s %s\n", name, text)
		}
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339) + " (" + age(now, t) + " ago)"
	}
	fmt.Fprintf(w, "%s is owed to %s: %s\n", plain(d.Event, 256), plain(d.Subscriber, 64), d.State)
	line("type", plain(d.Type, 256))
	line("key", plain(d.Key, 256))
	line("aggregate", plain(d.Aggregate, 256))
	line("source", plain(d.Source, 64))
	line("occurrence", plain(d.Occurrence, 64))
	line("position", d.Position)
	line("committed", at(d.CommittedAt))
	line("recorded", at(d.RecordedAt))
	line("attempts", strconv.Itoa(d.Attempts))
	line("first failure", at(d.FirstFailure))
	line("last failure", at(d.LastFailure))
	if !d.NextAttempt.IsZero() {
		line("next attempt", d.NextAttempt.Format(time.RFC3339))
	}
	line("error", plain(d.Error, 4096))
	line("invalid", plain(d.Invalid, 4096))
	line("headers", plain(string(d.Headers), 4096))
	line("payload", indented(d.Payload))
	fmt.Fprintln(w)
}

// indented is JSON for people. What is in its strings is escaped, so no character of it moves a cursor.
func indented(body json.RawMessage) string {
	var text bytes.Buffer
	if err := json.Indent(&text, body, "  ", "  "); err != nil {
		return ""
	}
	return strings.Map(func(c rune) rune {
		if c >= 0x7f && c < 0xa0 { // DEL and the control characters of the second half, which JSON lets through
			return '\uFFFD'
		}
		return c
	}, text.String())
}

type owedAdd struct {
	adminOptions
	reasonOption
	Subscriber string   `required:"" placeholder:"NAME" help:"Subscriber that gets the events."`
	State      string   `enum:",waiting,dead" default:"" placeholder:"STATE" help:"waiting or dead. Default: waiting; for deadletters: dead."`
	Events     []string `arg:"" name:"event" help:"Event ids, at most 1000."`
}

func (owedAdd) Help() string {
	return `Makes events of the outbox owed to a subscriber, and a running relay sends them within 2 seconds.

  walpost owed add 01M8KYWXP684RBZYHB26RMQSXQ --subscriber analytics --why "lost by the receiver"
  walpost owed add 01M8KYWXP684RBZYHB26RMQSXQ --subscriber billing --state dead --why "billing has it by mail"

They are sent in the order of their tables, before what the stream still brings. A delivery that is owed already stays as it is. So does one that was sent or discarded a moment ago and that the stream could still bring again. With --state=dead, waiting deliveries become dead letters: that is how a person ends an outage.`
}

func (c owedAdd) Validate() error {
	var why error
	if c.Why == "" {
		why = errNoReason
	}
	return config.Invalid(errors.Join(c.adminOptions.Validate(), why))
}

func (c owedAdd) Run(r *run) error {
	state := cmp.Or(lane.State(c.State), lane.StateWaiting)
	return c.at(r, func(service *admin.Service) error {
		added, err := service.Add(r.ctx, c.Subscriber, c.Events, state, who(), c.Why)
		if err != nil {
			return err
		}
		if c.JSON {
			err = writeJSON(r.Stdout, added)
		} else {
			_, err = fmt.Fprintf(r.Stdout, "%s now %s for %s. What is owed already is as it was.\n", printable.Count(added.Deliveries, "delivery"), state, plain(c.Subscriber, 64))
		}
		if err == nil && len(added.Missing) > 0 {
			err = fmt.Errorf("no outbox table has %d of the events: %s", len(added.Missing), plain(strings.Join(added.Missing, " "), 1000))
		}
		return err
	})
}
