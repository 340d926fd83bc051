package app

import (
	"fmt"
	"io"
	"strconv"

	"github.com/backendstart/walpost/internal/ops"
)

type statusCommand struct{ deskOptions }

func (statusCommand) Help() string {
	return `Reads the database alone, so it answers with the relay up or down. FINISHED is the commit up to which a subscriber has everything, as it was last written; BEHIND is WAL from the oldest delivery that waits, or else from what is finished, to the end; HOLDS is what of it the slot keeps for that debt. Events that a running relay has had for less than stall_after are in its memory: GET /progress at the ops address shows those.

  walpost status
  walpost status --json | jq '.slot.retained_bytes'

Next: walpost owed list --subscriber NAME`
}

func (c statusCommand) Run(r *run) error {
	return c.at(r, func(desk *ops.Desk) error {
		status, err := desk.Status(r.ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, status)
		}
		printStatus(r.Stdout, status)
		return nil
	})
}

func printStatus(w io.Writer, s ops.Status) {
	slot := s.Slot
	switch {
	case !slot.Exists && slot.State == "":
		fmt.Fprintf(w, "Slot %s does not exist, and no relay has used that name in this database.\n", slot.Name)
	case !slot.Exists:
		fmt.Fprintf(w, "Slot %s does not exist any more. The next start of the relay makes it anew and sends the unpublished rows first.\n", slot.Name)
	default:
		fmt.Fprintf(w, "Slot %s is %s", slot.Name, orDash(slot.WALStatus))
		if slot.Invalidation != "" {
			fmt.Fprintf(w, " (%s)", slot.Invalidation)
		}
		safe := "any amount"
		if slot.Safe != nil {
			safe = size(float64(max(0, *slot.Safe)))
		}
		fmt.Fprintf(w, ", confirmed up to %s.\n  lag %s   retained %s   may still be written before it is lost: %s\n",
			slot.Confirmed, size(float64(slot.LagBytes)), size(float64(slot.Retained)), safe)
		if slot.State == "" {
			fmt.Fprintln(w, "  walpost did not make it.")
		}
	}
	running := "nobody reads the slot: no relay runs, or it cannot stream"
	if slot.Active {
		running = "pid " + strconv.Itoa(slot.ActivePID) + " of the server sends it the slot"
	}
	if s.Leader != nil {
		fmt.Fprintf(w, "Leader %s, term %d; %s.\n", plain(s.Leader.Holder, 100), s.Leader.Term, running)
	} else {
		fmt.Fprintf(w, "No relay has led yet; %s.\n", running)
	}
	fmt.Fprintln(w)
	printSubscribers(w, s)
}

func printSubscribers(w io.Writer, s ops.Status) {
	if len(s.Subscribers) == 0 {
		fmt.Fprintln(w, "No subscriber is recorded: a relay records them when it starts to stream.")
		return
	}
	rows := [][]string{{"SUBSCRIBER", "STATE", "WAITING", "OLDEST", "DEAD", "OLDEST", "FINISHED", "BEHIND", "HOLDS"}}
	var waiting, dead int64
	for _, sub := range s.Subscribers {
		state, behind, holds := sub.State, size(float64(sub.LagBytes)), size(float64(sub.HoldingWALBytes))
		if state == ops.Gone {
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
	switch {
	case dead > 0:
		fmt.Fprintf(w, "\n%s wait for a person: walpost deadletters list\n", plural(dead))
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
