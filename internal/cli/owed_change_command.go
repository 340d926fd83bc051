package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/printable"
)

// choiceOptions choose deliveries to be changed, by their events' ids or by what fits.
type choiceOptions struct {
	adminOptions
	filterOptions
	changeOptions
	Limit  int      `default:"0" placeholder:"N" help:"Change at most this many deliveries; 0 is all that fit."`
	Events []string `arg:"" optional:"" name:"event" help:"Event ids, at most 1000."`
}

// Validate is called by kong.
func (c choiceOptions) Validate() error {
	var limit error
	if c.Limit < 0 {
		limit = errors.New("--limit: must not be negative")
	}
	return config.Invalid(errors.Join(c.adminOptions.Validate(), c.check(), limit))
}

// choice is the filter that the options make, if it is one that may be acted on.
func (c choiceOptions) choice() (debt.Filter, error) {
	filter := c.filter()
	filter.Events = append(filter.Events, c.Events...)
	filter.Limit = c.Limit
	return filter, filter.Narrow()
}

type owedRedrive struct{ choiceOptions }

func (owedRedrive) Help() string {
	return `Sends dead deliveries again: the running relay within 2 seconds, else the next one.

  walpost deadletters redrive 01M8KYWXP684RBZYHB26RMQSXQ --why "the receiver works again"
  walpost deadletters redrive --subscriber analytics --error "timeout" --since 2h --why "fixed" --dry-run

Fix the cause first. With after_dead_letter: block_key a key keeps its order. Else a redriven event comes after the later events of its key that were delivered meanwhile.

With event ids it says what became of each. Exit code 1: one of them is not going to be sent. Without event ids it counts first and asks at a terminal; elsewhere give --yes. What is recorded after the count stays dead.

If the event is invalid and only a copy of it is kept, it cannot be sent: insert it again and discard the dead one. If it was over max_event, raise max_event and restart the relay first: it is read from its row again.`
}

func (c owedRedrive) Run(r *run) error {
	filter, err := c.choice()
	if err != nil {
		return err
	}
	return c.at(r, func(service *admin.Service) error {
		if c.DryRun || len(filter.Events) == 0 {
			counts, at, err := service.Redrivable(r.ctx, filter)
			if err != nil {
				return err
			}
			would := admin.WouldRedriveOf(counts, c.Limit)
			if c.DryRun || would.WouldRedrive == 0 {
				return c.printWould(r, counts, would)
			}
			if !c.Yes {
				columns(r.Stderr, tableOfDead(counts))
			}
			if err := c.askPerson(r, fmt.Sprintf("Send %s again?", printable.Count(would.WouldRedrive, "delivery"))); err != nil {
				return err
			}
			filter.Until = earlier(filter.Until, at) // what came since was not counted
		}
		redriven, err := service.Redrive(r.ctx, filter, who(), c.Why)
		if err != nil {
			return err
		}
		if c.JSON {
			err = writeJSON(r.Stdout, redriven)
		} else {
			printAnswers(r.Stdout, redriven.Events)
			_, err = fmt.Fprintf(r.Stdout, "%s redriven%s. A relay that runs sends what waits within 2 seconds, else the next one does.\n",
				printable.Count(redriven.Redriven, "delivery"), left(redriven.Invalid, redriven.Gone))
		}
		if err != nil {
			return err
		}
		return allOf(redriven.Events, "not going to be sent", debt.Redriven, debt.Waiting)
	})
}

// printWould says what a redrive would do, or that there is nothing to do.
func (c owedRedrive) printWould(r *run, counts []debt.Redrivable, would admin.WouldRedrive) error {
	var err error
	switch {
	case c.DryRun && c.JSON:
		err = writeJSON(r.Stdout, would)
	case c.JSON:
		err = writeJSON(r.Stdout, admin.Redriven{Invalid: would.Invalid, Gone: would.Gone})
	case len(counts) == 0:
		_, err = fmt.Fprintln(r.Stdout, "Nothing dead fits; nothing was changed.")
	default:
		columns(r.Stdout, tableOfDead(counts))
		_, err = fmt.Fprintf(r.Stdout, "\n%s would be redriven%s. Nothing was changed.\n", printable.Count(would.WouldRedrive, "delivery"), left(would.Invalid, would.Gone))
	}
	return err
}

// tableOfDead are counts as rows for columns.
func tableOfDead(counts []debt.Redrivable) [][]string {
	rows := [][]string{{"SUBSCRIBER", "DEAD", "INVALID", "GONE"}}
	for _, c := range counts {
		rows = append(rows, []string{plain(c.Subscriber, 64), strconv.FormatInt(c.Redrivable, 10), strconv.FormatInt(c.Invalid, 10), strconv.FormatInt(c.Gone, 10)})
	}
	return rows
}

// left says what a redrive leaves dead.
func left(invalid, gone int64) string {
	var text string
	if invalid > 0 {
		text += fmt.Sprintf("; %d left dead whose event is no valid one (insert it again, then discard)", invalid)
	}
	if gone > 0 {
		text += fmt.Sprintf("; %d left dead whose subscriber has left the configuration", gone)
	}
	return text
}

type owedDiscard struct{ choiceOptions }

func (owedDiscard) Help() string {
	return `Examples:

  walpost deadletters discard 01M8KYWXP684RBZYHB26RMQSXQ --why "test data" --yes
  walpost deadletters discard --subscriber analytics --error "no such user" --why "users were deleted" --dry-run
  walpost owed discard --subscriber analytics --key 42 --until 2026-01-31 --why "sent by hand" --yes

The deliveries are never sent. Give at least one event or filter; --state alone is not enough. The command counts first and asks at a terminal; elsewhere give --yes. What is recorded after the count stays. If nothing else of a row is owed, the row is marked as published. A delivery that is being made at this moment may still arrive. With event ids it says what became of each.`
}

func (c owedDiscard) Run(r *run) error {
	filter, err := c.choice()
	if err != nil {
		return err
	}
	return c.at(r, func(service *admin.Service) error {
		counts, at, err := service.Fitting(r.ctx, filter)
		if err != nil {
			return err
		}
		fitting := admin.Total(counts, c.Limit)
		switch {
		case c.DryRun && c.JSON:
			return writeJSON(r.Stdout, map[string]any{"would_discard": fitting})
		case c.DryRun && fitting > 0:
			columns(r.Stdout, tableOf(counts))
			_, err := fmt.Fprintf(r.Stdout, "\n%s would be discarded. Nothing was changed.\n", printable.Count(fitting, "delivery"))
			return err
		case fitting == 0 && len(filter.Events) == 0 && c.JSON:
			return writeJSON(r.Stdout, admin.Discarded{})
		case fitting == 0 && (len(filter.Events) == 0 || c.DryRun):
			_, err := fmt.Fprintln(r.Stdout, "Nothing is owed that fits; nothing was changed.")
			return err
		case fitting > 0:
			if !c.Yes {
				columns(r.Stderr, tableOf(counts))
			}
			if err := c.askPerson(r, fmt.Sprintf("Discard %s for good?", printable.Count(fitting, "delivery"))); err != nil {
				return err
			}
		}
		filter.Until = earlier(filter.Until, at) // what came since was not counted
		discarded, err := service.Discard(r.ctx, filter, who(), c.Why)
		if err != nil {
			return err
		}
		if c.JSON {
			err = writeJSON(r.Stdout, discarded)
		} else {
			printAnswers(r.Stdout, discarded.Events)
			_, err = fmt.Fprintf(r.Stdout, "%s discarded.\n", printable.Count(discarded.Discarded, "delivery"))
		}
		if err != nil {
			return err
		}
		return allOf(discarded.Events, "not discarded", debt.Discarded, debt.Done)
	})
}

// earlier is the earlier of an end that someone may have given and a time.
func earlier(end, at time.Time) time.Time {
	if end.IsZero() || end.After(at) {
		return at
	}
	return end
}

// printAnswers tells of each event that was named what became of it.
func printAnswers(w io.Writer, answers []admin.Answer) {
	if len(answers) == 0 {
		return
	}
	rows := [][]string{{"EVENT", "SUBSCRIBER", "RESULT"}}
	for _, a := range answers {
		rows = append(rows, []string{plain(a.Event, 64), plain(cmp.Or(a.Subscriber, "-"), 64), plain(a.Detail, 400)})
	}
	columns(w, rows)
	fmt.Fprintln(w)
}

// allOf is an error unless everything that was named has come to one of these ends.
func allOf(answers []admin.Answer, what string, good ...debt.Result) error {
	bad := 0
	for _, a := range answers {
		if !slices.Contains(good, a.Result) {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d of the deliveries that were named", what, bad)
}
