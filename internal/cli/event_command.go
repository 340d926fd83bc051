package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
)

type eventCommand struct {
	adminOptions
	config.Ask
	ID string `arg:"" name:"event" help:"Event id."`
}

func (eventCommand) Help() string {
	return `Examples:

  walpost event 01M8KYWXP684RBZYHB26RMQSXQ
  walpost event 01M8KYWXP684RBZYHB26RMQSXQ --json | jq .deliveries

Shows the outbox row, how far each subscriber is, what is owed with attempts and errors, and what people have changed. A running relay adds the last attempts that it remembers and what it has in hand. If the id was used again (TRUNCATE … RESTART IDENTITY, a DELETE, a sequence that was set back), each of its events is shown with its occurrence: the text of the time column, or a hash of type and payload.

Exit code 1: there is no trace of the event.

Next: walpost tail --event ID shows its next attempts`
}

func (c eventCommand) Run(r *run) error {
	relay, err := askRelay(r, c.Ask)
	if err != nil {
		return err
	}
	return c.at(r, func(service *admin.Service) error {
		event, err := service.Event(r.ctx, c.ID)
		if err != nil {
			return err
		}
		var known admin.Remembered
		silent := relay.get(r.ctx, "/v1/attempts", url.Values{"event": {c.ID}, "limit": {"10000"}}, &known)
		if silent == nil {
			silent = relay.anotherSlot(known.Slot, c.Slot)
		}
		if silent == nil {
			event.AddRemembered(known)
		}
		if err := event.Known(); err != nil {
			if silent != nil {
				err = fmt.Errorf("%w; %w", err, silent)
			}
			return err
		}
		if c.JSON {
			answer := struct {
				admin.Event
				Unasked string `json:"relay_error,omitempty"`
			}{Event: event}
			if silent != nil {
				answer.Unasked = silent.Error()
			}
			return writeJSON(r.Stdout, answer)
		}
		printEvent(r.Stdout, event)
		if silent != nil {
			fmt.Fprintf(r.Stdout, "\nWhat a running relay remembers is not shown: %v\n", silent)
		}
		return nil
	})
}

func printEvent(w io.Writer, e admin.Event) {
	for _, row := range e.Rows {
		printEventRow(w, e.ID, row)
	}
	if len(e.Rows) == 0 {
		fmt.Fprintf(w, "Event %s: no outbox table has a row of it.\n", plain(e.ID, 256))
	}
	fmt.Fprintln(w)
	printStandings(w, e.Deliveries)
	if len(e.Audit) > 0 {
		fmt.Fprintln(w, "\nPeople have changed:")
		rows := [][]string{{"WHEN", "WHO", "WHAT", "WHY"}}
		for _, n := range e.Audit {
			rows = append(rows, []string{n.At.Format(time.RFC3339), plain(n.Who, 40), plain(n.Action, 20), plain(n.Why, 80)})
		}
		columns(w, rows)
	}
	if e.Relay == nil {
		return
	}
	switch {
	case len(e.Relay.Attempts) > 0:
		fmt.Fprintf(w, "\nAttempts that the relay remembers, since %s:\n", e.Relay.Since.Format(time.RFC3339))
		of := make([]string, len(e.Relay.Attempts))
		rows := [][]string{{"ENDED", "SUBSCRIBER", "ATTEMPT", "OUTCOME", "TOOK", "ERROR"}}
		for i, a := range e.Relay.Attempts {
			of[i] = a.Occurrence
			rows = append(rows, []string{
				a.At.Format("2006-01-02T15:04:05.000Z07:00"), plain(a.Subscriber, 64), strconv.Itoa(a.Number), string(a.Outcome), took(a), plain(a.Error, 100),
			})
		}
		rows = withOccurrences(rows, of)
		columns(w, rows)
	case e.Relay.Since.IsZero():
		fmt.Fprintln(w, "\nThe relay has made no attempt since it started.")
	default:
		fmt.Fprintf(w, "\nThe relay remembers attempts since %s, none of this event.\n", e.Relay.Since.Format(time.RFC3339))
	}
}

func printEventRow(w io.Writer, id string, row admin.EventRow) {
	fmt.Fprintf(w, "Event %s of source %s, row %s\n", plain(id, 256), plain(row.Source, 64), plain(row.Row, 80))
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-10s %s\n", name, plain(value, 300))
		}
	}
	line("type", row.Type)
	line("key", row.Key)
	line("aggregate", row.Aggregate)
	line("created", row.CreatedAt)
	if row.Occurrence != row.CreatedAt {
		line("occurrence", row.Occurrence)
	}
	if !row.CommittedAt.IsZero() {
		line("committed", row.CommittedAt.Format(time.RFC3339Nano))
	}
	switch {
	case row.Published == nil:
		line("published", "this table has no column for it")
	case !*row.Published:
		line("published", "no")
	case row.PublishedAt == "":
		line("published", "yes")
	default:
		line("published", row.PublishedAt)
	}
	if row.Attempts > 0 {
		line("attempts", strconv.Itoa(row.Attempts)+" failed, over all subscribers")
	}
	line("invalid", row.Invalid)
	fmt.Fprintf(w, "  %-10s %s\n", "headers", compact(row.Headers))
	fmt.Fprintf(w, "  %-10s %s\n", "payload", compact(row.Payload))
}

// compact is JSON on one line, that leaves the terminal alone and shows no more than a screen takes.
func compact(body json.RawMessage) string {
	var line bytes.Buffer
	switch {
	case len(body) == 0:
		return "-"
	case json.Compact(&line, body) != nil:
		return plain(string(body), 2000)
	}
	return plain(line.String(), 2000)
}

func printStandings(w io.Writer, standings []admin.Standing) {
	if len(standings) == 0 {
		fmt.Fprintln(w, "No subscriber is recorded at this slot: no relay has streamed from it yet.")
		return
	}
	now := time.Now()
	of := make([]string, len(standings))
	rows := [][]string{{"SUBSCRIBER", "SOURCE", "STATE", "EFFECT", "ATTEMPTS", "NEXT", "ERROR"}}
	unknown := false
	for i, s := range standings {
		of[i] = s.Occurrence
		effect, attempts, next, reason := "-", "-", "-", ""
		if !s.EffectAt.IsZero() {
			effect = s.EffectAt.Format(time.RFC3339)
		}
		if o := s.Owed; o != nil {
			attempts, reason = strconv.Itoa(o.Attempts)+" failed", o.Error
			if reason == "" {
				reason = o.Invalid
			}
			if !o.NextAttempt.IsZero() && o.NextAttempt.After(now) {
				next = "in " + age(o.NextAttempt, now)
			}
		}
		unknown = unknown || s.State == admin.Unknown
		rows = append(rows, []string{plain(s.Subscriber, 64), plain(s.Source, 64), s.State, effect, attempts, next, plain(reason, 100)})
	}
	columns(w, withOccurrences(rows, of))
	if unknown {
		fmt.Fprintln(w, "\nunknown: its row is not marked, nothing is owed, and no relay has it in hand: it has not come yet, or was finished a moment ago, or the relay could not be asked.")
	}
}

// withOccurrences adds a last but one column to a table, with the occurrence of each line, where there are several.
func withOccurrences(rows [][]string, of []string) [][]string {
	if len(slices.Compact(slices.Sorted(slices.Values(of)))) < 2 {
		return rows
	}
	for i, row := range rows {
		text := "OCCURRENCE"
		if i > 0 {
			text = plain(of[i-1], 64)
		}
		rows[i] = slices.Insert(row, len(row)-1, text)
	}
	return rows
}

// Validate is called by kong.
func (c eventCommand) Validate() error {
	var id error
	if c.ID == "" {
		id = errors.New("an event id is missing")
	}
	return config.Invalid(errors.Join(c.adminOptions.Validate(), id))
}
