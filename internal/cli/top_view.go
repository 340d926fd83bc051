package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/relay"
)

// This file says what top shows of what it has seen; it changes nothing.

// shownProblems is how many sentences of what is wrong stand above the table.
const shownProblems = 3

// head is what stands above the table: the relay, the slot, who leads, what is wrong.
func (t top) head() []string {
	s := t.now
	ready := "READY"
	if !s.health.Ready {
		ready = "NOT READY"
	}
	if t.failed != nil {
		ready = "NO ANSWER for " + printable.Age(time.Since(s.at).Round(time.Second))
	}
	lines := []string{
		fmt.Sprintf("walpost %s  %s  %s, %s", plain(orDash(s.version), 24), s.at.Local().Format("15:04:05"), ready, s.health.State),
	}
	slot := s.status.Slot
	if slot.Exists {
		lines = append(lines, fmt.Sprintf("slot %s %s  lag %s  retained %s  lost %s", slot.Name, orDash(slot.WALStatus),
			printable.Size(slot.LagBytes), printable.Size(slot.Retained), lasts(s.left)))
	} else {
		lines = append(lines, fmt.Sprintf("slot %s DOES NOT EXIST", slot.Name))
	}
	leader := "no relay leads"
	if l := s.status.Leader; l != nil && l.Holder != "" {
		leader = fmt.Sprintf("leader %s, term %d", plain(l.Holder, 60), l.Term)
	}
	lines = append(lines, leader)
	if p := s.progress; p != nil {
		lines = append(lines, fmt.Sprintf("in %s/s  open %d (%s)", rate(s.received-t.before.received, t.since()), p.OpenEvents, printable.Size(p.OpenBytes)))
	} else {
		why := s.elsewhere
		if _, detail, redirected := strings.Cut(why, "Temporary Redirect: "); redirected {
			why = detail
		}
		lines = append(lines, "what the leader has in memory is not here:", "  "+plain(why, 200))
	}
	if t.failed != nil {
		lines = append(lines, "! "+plain(t.failed.Error(), 200))
	}
	for i, problem := range s.health.Problems {
		if i == shownProblems {
			lines = append(lines, fmt.Sprintf("! and %d more: walpost status", len(s.health.Problems)-i))
			break
		}
		lines = append(lines, "! "+plain(problem, 300))
	}
	return lines
}

// since is the time that rates are taken over; 0 before the second look.
func (t top) since() time.Duration {
	if t.before.at.IsZero() {
		return 0
	}
	return t.now.at.Sub(t.before.at)
}

// rate is a number per second; a process that has started again has counted less than before.
func rate(n float64, over time.Duration) string {
	if over <= 0 || n < 0 {
		return "-"
	}
	perSecond := n / over.Seconds()
	if perSecond > 0 && perSecond < 10 {
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return strconv.FormatFloat(perSecond, 'f', 0, 64)
}

// lasts is the time until the slot is lost.
func lasts(seconds float64) string {
	switch {
	case math.IsNaN(seconds):
		return "?"
	case math.IsInf(seconds, 1):
		return "never at this rate"
	case seconds >= (365 * 24 * time.Hour).Seconds():
		return "in over a year"
	}
	return "in " + printable.Age(time.Duration(seconds)*time.Second)
}

// Widths of the columns behind the name, and the least that the name and the error have.
const (
	leastName  = 16
	leastError = 24
)

// rows are the names of the columns, and a line for each subscriber, by name as the database has them. At 80 columns all
// figures have room; what is wider goes to the last error, and then to the name.
func (t top) rows() []string {
	figures := func(is, out, fail, open, oldest, waiting, dead, holds string) string {
		return fmt.Sprintf(" %-8s%7s%6s%6s%7s%8s%6s%9s", is, out, fail, open, oldest, waiting, dead, holds)
	}
	head := figures("IS", "OUT", "FAIL", "OPEN", "OLDEST", "WAITING", "DEAD", "HOLDS")
	name := max(leastName, t.width-len(head))
	withError := t.width >= leastName+len(head)+2+leastError
	if withError {
		name = leastName + (t.width-leastName-len(head)-2-leastError)/4
	}
	line := func(subscriber, figures, lastError string) string {
		subscriber = cut(subscriber, name)
		text := subscriber + strings.Repeat(" ", max(0, name-textWidth(subscriber))) + figures
		if withError && lastError != "" {
			text += "  " + lastError
		}
		return text
	}
	rows := []string{line("SUBSCRIBER", head, "LAST ERROR")}
	for _, recorded := range t.now.status.Subscribers {
		out, fail, open, oldest, holds, lastError := "-", "-", "-", "-", printable.Size(recorded.HoldingWALBytes), ""
		now := subscriberIn(t.now.progress, recorded.Name)
		if now != nil {
			if before := subscriberIn(t.before.progress, recorded.Name); before != nil {
				out, fail = rate(float64(now.Delivered)-float64(before.Delivered), t.since()), rate(float64(now.Failed)-float64(before.Failed), t.since())
			}
			open, holds, lastError = strconv.Itoa(now.Open), printable.Size(now.HoldingWALBytes), now.LastError
			oldest = age(t.now.at, now.OldestSince)
		}
		rows = append(rows, line(plain(recorded.Name, 64), figures(wordFor(recorded, now), out, fail, open, oldest,
			strconv.FormatInt(recorded.Waiting.Deliveries, 10), strconv.FormatInt(recorded.Dead.Deliveries, 10), holds), plain(lastError, 300)))
	}
	if len(t.now.status.Subscribers) == 0 {
		rows = append(rows, "No subscriber is recorded: a relay records them when it starts to stream.")
	}
	return rows
}

func subscriberIn(p *relay.Progress, name string) *relay.Subscriber {
	if p != nil {
		for i := range p.Subscribers {
			if p.Subscribers[i].Name == name {
				return &p.Subscribers[i]
			}
		}
	}
	return nil
}

// wordFor is how a subscriber stands, in a word; the breaker comes before the debt that follows from it.
func wordFor(recorded admin.Subscriber, now *relay.Subscriber) string {
	switch {
	case recorded.State != admin.Live:
		return recorded.State
	case now == nil:
		return recorded.State
	case now.Paused:
		return "paused"
	case now.Away:
		return "AWAY"
	case len(now.Overdue) > 0:
		return "OVERDUE"
	case now.InDebt:
		return "in debt"
	case now.KeysInDebt > 0:
		return printable.Count(now.KeysInDebt, "key")
	}
	return "live"
}
