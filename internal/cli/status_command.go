package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/relay"
)

type statusCommand struct {
	adminOptions
	config.Ask
}

func (statusCommand) Help() string {
	return `Examples:

  walpost status
  walpost status --json | jq '.slot.retained_bytes'

The first lines say what is wrong, as /ready of the running relay does. The rest is read from the database, so status answers with the relay up or down.

FINISHED is the commit up to which a subscriber has everything, as it was last written.

LAG is WAL in bytes: from the subscriber's oldest delivery that waits, or else from what is finished or confirmed, to the end of the WAL. If a subscriber has nothing to do, a running relay counts from where it has read to; without a relay its LAG is larger.

HOLDING is how much of LAG the slot keeps for the subscriber's debt, in bytes.

Exit code 1: the relay that answers is not ready, or no relay answers and no one reads the slot.

Next: walpost owed list --subscriber NAME`
}

func (c statusCommand) Run(r *run) error {
	running, err := askRelay(r, c.Ask)
	if err != nil {
		return err
	}
	return c.at(r, func(service *admin.Service) error {
		status, err := service.Status(r.ctx)
		if err != nil {
			return err
		}
		progress := new(relay.Progress)
		silent := running.get(r.ctx, "/progress", nil, progress)
		if silent == nil {
			silent = running.anotherSlot(progress.Slot, c.Slot)
		}
		if silent == nil && progress.State == relay.Streaming && !status.IsReadBy(*progress) {
			silent = running.anotherServer(c.Slot)
		}
		var health *relay.Health
		if silent == nil {
			health = new(relay.Health)
			silent = running.get(r.ctx, readyPath, nil, health)
		}
		if silent != nil {
			progress, health = nil, nil
		} else {
			status.AddProgress(*progress)
		}
		if c.JSON {
			answer := statusAnswer{Status: status, Relay: progress}
			if health != nil {
				answer.Ready, answer.Problems = &health.Ready, health.Problems
			}
			return errors.Join(writeJSON(r.Stdout, answer), notReady(health, status))
		}
		if health != nil {
			printHealth(r.Stdout, *health)
		}
		printStatus(r.Stdout, status)
		switch {
		case progress != nil:
			printProgress(r.Stdout, time.Now(), *progress)
		case status.Slot.Active:
			fmt.Fprintf(r.Stdout, "\nWhat the running relay has in memory is not shown: %v\n", silent)
		}
		return notReady(health, status)
	})
}

// statusAnswer is the status for programs. Ready, Problems and Relay are absent where no relay answers.
type statusAnswer struct {
	Ready    *bool    `json:"ready,omitempty"`
	Problems []string `json:"problems,omitempty"`
	admin.Status
	Relay *relay.Progress `json:"relay,omitempty"`
}

// notReady is the error of a relay that answers and is not ready, or that no relay can be seen: one that runs elsewhere reads
// the slot.
func notReady(health *relay.Health, status admin.Status) error {
	switch {
	case health != nil && !health.Ready:
		return errors.New("the relay is not ready")
	case health == nil && !status.Slot.Active:
		return errors.New("no relay answers, and no one reads the slot")
	}
	return nil
}

// printHealth says first what is wrong.
func printHealth(w io.Writer, health relay.Health) {
	if health.Ready {
		fmt.Fprintf(w, "Ready: the relay is %s.\n", health.State)
	} else {
		fmt.Fprintf(w, "Not ready: the relay is %s.\n", health.State)
	}
	for _, problem := range health.Problems {
		fmt.Fprintf(w, "  - %s\n", plain(problem, 1000))
	}
	fmt.Fprintln(w)
}

// slowAfter is the age of an open event from which a person wants to see it.
const slowAfter = 5 * time.Second

// printProgress tells what a running relay has in memory: events that it has had for less than stall_after
// are in no table.
func printProgress(w io.Writer, now time.Time, p relay.Progress) {
	fmt.Fprintf(w, "\nThe relay is %s and has %s.\n", p.State, printable.Count(p.OpenEvents, "open event"))
	var rows [][]string
	for _, s := range p.Subscribers {
		var state []string
		for _, is := range []struct {
			so   bool
			what string
		}{
			{s.Away, "away"}, {s.Paused, "paused"}, {s.InDebt, "in debt"},
			{s.KeysInDebt > 0, printable.Count(s.KeysInDebt, "key") + " in debt"},
			{len(s.Overdue) > 0, printable.Count(len(s.Overdue), "call") + " overdue"},
		} {
			if is.so {
				state = append(state, is.what)
			}
		}
		if len(state) == 0 && s.Open > 0 && now.Sub(s.OldestSince) > slowAfter {
			state = append(state, "slow or failing")
		}
		if len(state) == 0 {
			continue
		}
		oldest := "-"
		if s.OldestOpen != "" {
			oldest = plain(s.OldestOpen, 64) + ", " + age(now, s.OldestSince)
		}
		rows = append(rows, []string{plain(s.Name, 64), strings.Join(state, ", "), strconv.Itoa(s.Open), oldest, plain(orDash(s.LastError), 100)})
	}
	if len(rows) > 0 {
		columns(w, append([][]string{{"SUBSCRIBER", "IS", "OPEN", "OLDEST", "LAST ERROR"}}, rows...))
	}
	printRouting(w, p)
}

// shownTypes is how many types that no one takes status names.
const shownTypes = 10

// printRouting names what keeps events from everyone without a failure, as far as the relay has seen since its start.
func printRouting(w io.Writer, p relay.Progress) {
	var lines []string
	for _, t := range p.UntakenTypes[:min(len(p.UntakenTypes), shownTypes)] {
		lines = append(lines, fmt.Sprintf("No subscriber takes events of type %q of source %s: they count as published.", plain(t.Type, 100), plain(t.Source, 64)))
	}
	if more := len(p.UntakenTypes) - shownTypes; more > 0 {
		lines = append(lines, "No subscriber takes "+printable.Count(more, "further type")+".")
	}
	for _, s := range p.Subscribers {
		for _, pattern := range s.IdlePatterns {
			lines = append(lines, fmt.Sprintf("%s: no event has matched %q of its events: since the relay started.", plain(s.Name, 64), plain(pattern, 100)))
		}
	}
	for _, s := range p.Subscribers {
		for _, source := range slices.Sorted(maps.Keys(s.AbsentSources)) {
			lines = append(lines, fmt.Sprintf("%s: %s of source %s %s by reference, and the source is not in the configuration: put it back, or discard them.",
				plain(s.Name, 64), printable.Count(s.AbsentSources[source], "event"), plain(source, 64), areOwed(s.AbsentSources[source])))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintln(w, "\n"+strings.Join(lines, "\n"))
	}
}

func areOwed(n int64) string {
	if n == 1 {
		return "is owed"
	}
	return "are owed"
}

func printStatus(w io.Writer, s admin.Status) {
	slot := s.Slot
	switch {
	case !slot.Exists && slot.State == "":
		fmt.Fprintf(w, "Slot %s does not exist, and no relay has used that name in this database.\n", slot.Name)
	case !slot.Exists:
		fmt.Fprintf(w, "Slot %s does not exist any more. The next start of the relay makes it again and sends the unpublished rows first.\n", slot.Name)
	default:
		fmt.Fprintf(w, "Slot %s is %s", slot.Name, orDash(slot.WALStatus))
		if slot.LostReason != "" {
			fmt.Fprintf(w, " (%s)", plain(slot.LostReason, 200))
		}
		safe := "any amount"
		if slot.Safe != nil {
			safe = printable.Size(max(0, *slot.Safe))
		}
		fmt.Fprintf(w, ", confirmed up to %s.\n  lag %s   retained %s   may still be written before it is lost: %s\n",
			slot.Confirmed, printable.Size(slot.LagBytes), printable.Size(slot.Retained), safe)
		if slot.State == "" {
			fmt.Fprintln(w, "  walpost did not make it.")
		}
		if slot.HeldBackBy != "" {
			fmt.Fprintf(w, "  The server waits for a standby of synchronized_standby_slots (%s) before it sends more.\n", plain(slot.HeldBackBy, 100))
		}
	}
	for _, other := range s.Unread {
		fmt.Fprintf(w, "  Slot %s, too, is one of walpost's here: no one reads it, and the server keeps %s of WAL for it. Start its relay, or remove it (docs/operating.md, Remove walpost).\n",
			plain(other.Name, 64), printable.Size(other.RetainedBytes))
	}
	running := "no one reads the slot: no relay runs, or it cannot stream"
	if slot.Active {
		running = "pid " + strconv.Itoa(slot.ActivePID) + " of the server sends it the slot"
	}
	switch {
	case s.Leader != nil && s.Leader.Holder == "":
		fmt.Fprintf(w, "No relay leads, the last term was %d; %s.\n", s.Leader.Term, running)
	case s.Leader != nil:
		fmt.Fprintf(w, "Leader %s, term %d; %s.\n", plain(s.Leader.Holder, 100), s.Leader.Term, running)
	default:
		fmt.Fprintf(w, "No relay has led yet; %s.\n", running)
	}
	for _, stranger := range s.Strangers {
		fmt.Fprintf(w, "  %s: it stops nothing, but it is no relay.\n", plain(stranger.String(), 120))
	}
	fmt.Fprintln(w)
	printSubscribers(w, s)
}

func printSubscribers(w io.Writer, s admin.Status) {
	if len(s.Subscribers) == 0 {
		fmt.Fprintln(w, "No subscriber is recorded: a relay records them when it starts to stream.")
		return
	}
	rows := [][]string{{"SUBSCRIBER", "STATE", "WAITING", "OLDEST", "DEAD", "OLDEST", "FINISHED", "LAG", "HOLDING"}}
	var waiting, dead int64
	for _, sub := range s.Subscribers {
		state, behind, holds := sub.State, printable.Size(sub.LagBytes), printable.Size(sub.HoldingWALBytes)
		if state == admin.Gone {
			state, behind, holds = "gone for "+age(s.At, sub.GoneAt), "-", "-"
		}
		rows = append(rows, []string{
			plain(sub.Name, 64), state,
			strconv.FormatInt(sub.Waiting.Deliveries, 10), age(s.At, sub.Waiting.Since),
			strconv.FormatInt(sub.Dead.Deliveries, 10), age(s.At, sub.Dead.Since),
			sub.FinishedLSN, behind, holds,
		})
		waiting, dead = waiting+sub.Waiting.Deliveries, dead+sub.Dead.Deliveries
	}
	columns(w, rows)
	for _, sub := range s.Subscribers {
		if sub.NotBelieved != "" {
			fmt.Fprintf(w, "\n%s: %s. That cannot be: restart the relay, which does not believe it and sends what is unpublished.\n", plain(sub.Name, 64), plain(sub.NotBelieved, 200))
		}
	}
	switch {
	case dead > 0:
		verb := "wait"
		if dead == 1 {
			verb = "waits"
		}
		fmt.Fprintf(w, "\n%s %s for a person: walpost deadletters list\n", printable.Count(dead, "delivery"), verb)
	case waiting == 0:
		fmt.Fprintln(w, "\nNothing is owed.")
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
