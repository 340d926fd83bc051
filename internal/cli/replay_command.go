package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/replay"
)

type replayCommand struct {
	Start  replayStart  `cmd:"" default:"withargs" help:"Send one subscriber events again; the word start may be left out."`
	List   replayList   `cmd:"" help:"Show the newest replays and how far they are."`
	Cancel replayCancel `cmd:"" help:"End a replay."`
}

func (replayCommand) Help() string {
	return `Examples:

  walpost replay billing --since 2h --why "its database was restored" --dry-run
  walpost replay billing --since 2026-01-31 --until 2026-02-01 --why "its database was restored"
  walpost replay recommendations --key 42 --again --why "counted wrong"
  walpost replay list
  walpost replay cancel 7

Sends events again, whether the subscriber has had them or not. The relay sends them along with live events, in order within the key. Other subscribers notice nothing. A webhook sees the header Walpost-Replay.`
}

type replayStart struct {
	adminOptions
	changeOptions
	Subscriber string `arg:"" help:"Subscriber that gets the events."`
	Since      when   `placeholder:"TIME" help:"Events since, by their own time: 2026-01-31T15:04:05Z, or how long ago: 30m, 2h, 7d."`
	Until      when   `placeholder:"TIME" help:"Events before."`
	Key        string `placeholder:"KEY" help:"Events of this key."`
	Type       string `placeholder:"TYPE" help:"Events of this type."`
	Source     string `placeholder:"NAME" help:"Events from this source."`
	Again      bool   `help:"Let effects that walpost.inbox has recorded happen once more."`
	Rate       int    `default:"500" placeholder:"N" help:"Events a second at most; 0 is no limit."`
	Detach     bool   `short:"d" help:"Do not wait until it is done."`
}

func (replayStart) Help() string {
	return `Examples:

  walpost replay billing --since 2h --why "its database was restored" --dry-run
  walpost replay recommendations --key 42 --again --why "counted wrong"

It counts first and asks at a terminal; elsewhere give --yes. Then it waits and shows how far the replay is; Ctrl-C leaves the replay running. Without a relay it is recorded, and begins when one runs.

It leaves out and counts: events that the subscriber is owed (a waiting one is sent by itself, a dead one by walpost deadletters redrive), types that the subscriber does not want, and rows that are no valid events. Rows that come after this moment are not part of it. Several replays to one subscriber take turns. A replay waits while the subscriber is paused or away, or while a key of the replay is in debt. --since and --until compare the source's time column (occurred_at, created_at).

A subscriber of this database with an inbox (walpost.inbox) skips an effect that it has had. With --again each effect happens exactly once more. Other receivers see the same event id again.`
}

// Validate is called by kong.
func (c replayStart) Validate() error {
	return config.Invalid(errors.Join(c.adminOptions.Validate(), c.check(), c.request().Check()))
}

func (c replayStart) request() replay.Request {
	return replay.Request{
		Subscriber: c.Subscriber, Since: c.Since.Time, Until: c.Until.Time, Key: c.Key, Type: c.Type, Source: c.Source,
		Again: c.Again, Rate: c.Rate,
	}
}

func (c replayStart) Run(r *run) error {
	request := c.request()
	return c.at(r, func(service *admin.Service) error {
		estimate, err := service.EstimateReplay(r.ctx, request)
		if err != nil {
			return err
		}
		switch {
		case c.DryRun && c.JSON:
			return writeJSON(r.Stdout, map[string]any{"estimate": estimate})
		case c.DryRun:
			printEstimate(r.Stdout, request, estimate)
			_, err := fmt.Fprintln(r.Stdout, "Nothing was changed.")
			return err
		case estimate.Sent == 0 && c.JSON:
			return writeJSON(r.Stdout, map[string]any{"estimate": estimate})
		case estimate.Sent == 0:
			printEstimate(r.Stdout, request, estimate)
			_, err := fmt.Fprintln(r.Stdout, "Nothing is to be sent; nothing was changed.")
			return err
		}
		if !c.JSON || !c.Yes {
			printEstimate(r.Stderr, request, estimate)
		}
		if err := c.askPerson(r, "Send them again?"); err != nil {
			return err
		}
		asked, err := service.Replay(r.ctx, request, estimate, who(), c.Why)
		if err != nil {
			return err
		}
		return c.follow(r, service, estimate, asked)
	})
}

// follow waits until a replay is over, unless no one wants to wait or no one does it.
func (c replayStart) follow(r *run, service *admin.Service, estimate replay.Estimate, asked replay.Replay) error {
	status, err := service.Status(r.ctx)
	if err != nil {
		return fmt.Errorf("replay %d is recorded, but: %w", asked.ID, err)
	}
	said := fmt.Sprintf("Replay %d is recorded. See how far it is: walpost replay list. End it: walpost replay cancel %[1]d", asked.ID)
	if !status.Slot.Active {
		fmt.Fprintf(r.Stderr, "No relay reads slot %s at this moment: the replay begins when one does.\n", status.Slot.Name)
	}
	if c.Detach || !status.Slot.Active {
		if c.JSON {
			return writeJSON(r.Stdout, map[string]any{"estimate": estimate, "replay": asked})
		}
		_, err := fmt.Fprintln(r.Stdout, said)
		return err
	}
	screen := newScreen(r.Stderr, r.Stderr)
	if !screen.live {
		fmt.Fprintln(r.Stderr, said)
	}
	begun := time.Now()
	tick := time.NewTicker(tableEvery)
	defer tick.Stop()
	at := asked
	for at.State.Open() {
		if screen.live {
			screen.show(progressOf(at, time.Since(begun)))
		}
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			fmt.Fprintf(r.Stderr, "\nReplay %d goes on without you. See how far it is: walpost replay list. End it: walpost replay cancel %[1]d\n", asked.ID)
			return nil
		}
		found, err := service.FindReplay(r.ctx, asked.ID)
		switch {
		case err == nil:
			at = found
		case r.ctx.Err() == nil:
			return fmt.Errorf("replay %d goes on, but: %w", asked.ID, err)
		}
	}
	if screen.live {
		screen.show("")
	}
	if c.JSON {
		err = writeJSON(r.Stdout, map[string]any{"estimate": estimate, "replay": at})
	} else {
		printReplay(r.Stdout, at)
	}
	if err == nil && at.State == replay.Cancelled {
		err = fmt.Errorf("replay %d was cancelled", at.ID)
	}
	return err
}

func printEstimate(w io.Writer, request replay.Request, estimate replay.Estimate) {
	rows := [][]string{{"SOURCE", "ROWS", "OWED", "OTHER TYPES", "IN INBOX", "OLDEST ROW"}}
	var inbox int64
	for _, s := range estimate.Sources {
		oldest := "-"
		if !s.From.IsZero() {
			oldest = s.From.Format(time.RFC3339)
		}
		rows = append(rows, []string{plain(s.Source, 64), number(s.Rows), number(s.Owed), number(s.Unwanted), number(s.InInbox), oldest})
		inbox += s.InInbox
	}
	columns(w, rows)
	fmt.Fprintln(w)
	for _, note := range estimate.Notes {
		fmt.Fprintln(w, note)
	}
	pace := "as fast as it takes them"
	if request.Rate > 0 {
		pace = fmt.Sprintf("at most %d a second, %s or more", request.Rate, time.Duration(estimate.Sent/int64(request.Rate)+1)*time.Second)
	}
	fmt.Fprintf(w, "%s to %s, %s.\n", printable.Count(estimate.Sent, "delivery"), plain(request.Subscriber, 64), pace)
	switch {
	case inbox > 0 && request.Again:
		fmt.Fprintf(w, "Effects of %d of them are recorded in its inbox and happen once more.\n", inbox)
	case inbox > 0:
		fmt.Fprintf(w, "Effects of %d of them are recorded in its inbox and are skipped; --again lets them happen once more.\n", inbox)
	}
}

// progressOf is a bar and what a person wants to know meanwhile.
func progressOf(at replay.Replay, took time.Duration) string {
	const width = 30
	done := 0
	if at.Estimated > 0 {
		done = int(width * min(at.Seen(), at.Estimated) / at.Estimated)
	}
	line := fmt.Sprintf("[%s%s] %d of %d, %s", strings.Repeat("#", done), strings.Repeat(".", width-done), at.Seen(), at.Estimated, took.Round(time.Second))
	if at.Dead > 0 {
		line += fmt.Sprintf(", dead %d", at.Dead)
	}
	if left := at.Owed + at.Unwanted + at.Invalid; left > 0 {
		line += fmt.Sprintf(", left out %d", left)
	}
	switch {
	case at.Problem != "":
		line += "; " + plain(at.Problem, 200)
	case at.State == replay.Waiting:
		line += "; waits for its turn"
	}
	return line + "\n"
}

// printReplay says what has become of a replay that is over.
func printReplay(w io.Writer, at replay.Replay) {
	fmt.Fprintf(w, "Replay %d to %s is %s: %d delivered", at.ID, plain(at.Subscriber, 64), at.State, at.Delivered)
	for _, part := range []struct {
		n    int64
		text string
	}{
		{at.Dead, "became dead letters (walpost deadletters list)"},
		{at.Owed, "left out that are owed already"},
		{at.Unwanted, "left out that it does not want"},
		{at.Invalid, "left out that are no valid events"},
	} {
		if part.n > 0 {
			fmt.Fprintf(w, ", %d %s", part.n, part.text)
		}
	}
	fmt.Fprintln(w, ".")
	for _, name := range at.Named {
		fmt.Fprintln(w, "  "+plain(name, 400))
	}
	if gone := at.Estimated - at.Seen(); gone > 0 && at.State == replay.Done {
		fmt.Fprintf(w, "Of what was counted before, %s not in the tables any more.\n", printable.Count(gone, "row", "was"))
	}
}

type replayList struct {
	adminOptions
	Limit int `default:"20" placeholder:"N" help:"Show at most this many replays."`
}

func (c replayList) Validate() error {
	return config.Invalid(errors.Join(c.adminOptions.Validate(), checkLimit(c.Limit)))
}

func (c replayList) Run(r *run) error {
	return c.at(r, func(service *admin.Service) error {
		replays, err := service.Replays(r.ctx, c.Limit)
		switch {
		case err != nil:
			return err
		case c.JSON:
			return writeJSON(r.Stdout, map[string]any{"replays": append([]replay.Replay{}, replays...)})
		case len(replays) == 0:
			_, err := fmt.Fprintln(r.Stdout, "No one has asked for a replay.")
			return err
		}
		now := time.Now()
		rows := [][]string{{"REPLAY", "SUBSCRIBER", "STATE", "ASKED", "BY", "WHAT", "SEEN", "OF", "DEAD", "LEFT OUT", "PROBLEM"}}
		for _, at := range replays {
			rows = append(rows, []string{
				number(at.ID), plain(at.Subscriber, 64), string(at.State), age(now, at.AskedAt), plain(at.Who, 40), plain(whatOf(at.Request), 120),
				number(at.Seen()), number(at.Estimated), number(at.Dead), number(at.Owed + at.Unwanted + at.Invalid), plain(at.Problem, 120),
			})
		}
		columns(r.Stdout, rows)
		return nil
	})
}

// whatOf says what a request chooses as it would be typed.
func whatOf(request replay.Request) string {
	var parts []string
	for _, part := range []struct{ flag, value string }{
		{"since", timeOf(request.Since)}, {"until", timeOf(request.Until)},
		{"key", request.Key}, {"type", request.Type}, {"source", request.Source},
	} {
		if part.value != "" {
			parts = append(parts, "--"+part.flag+" "+part.value)
		}
	}
	if request.Again {
		parts = append(parts, "--again")
	}
	return strings.Join(parts, " ")
}

func timeOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

type replayCancel struct {
	adminOptions
	reasonOption
	ID int64 `arg:"" name:"replay" help:"Number of the replay; walpost replay list shows it."`
}

func (replayCancel) Help() string {
	return `Ends a replay; a running relay stops it within 2 seconds.

  walpost replay cancel 7

What was sent stays sent, and dead letters stay.`
}

func (c replayCancel) Run(r *run) error {
	return c.at(r, func(service *admin.Service) error {
		cancelled, err := service.CancelReplay(r.ctx, c.ID, who(), c.Why)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, cancelled)
		}
		_, err = fmt.Fprintf(r.Stdout, "Replay %d to %s is cancelled; a running relay stops within 2 seconds. It had seen %d of %s.\n",
			cancelled.ID, plain(cancelled.Subscriber, 64), cancelled.Seen(), printable.Count(cancelled.Estimated, "row"))
		return err
	})
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
