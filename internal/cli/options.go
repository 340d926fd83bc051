package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/migrations"
)

// adminOptions are those of every command for people that works on the tables of schema walpost.
type adminOptions struct {
	config.File
	config.Database
	Slot string `env:"WALPOST_SLOT" type:"slot" default:"walpost" placeholder:"NAME" help:"Replication slot of the relay."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Validate is called by kong.
func (o adminOptions) Validate() error {
	return config.Invalid(needsDSN("database_url", o.DatabaseURL))
}

// at runs fn with the admin service of the database and slot that the options name.
func (o adminOptions) at(r *run, fn func(*admin.Service) error) error {
	pool, err := app.OpenDatabase(r.ctx, o.DatabaseURL, "walpost/cli", migrations.Walpost)
	if err != nil {
		return err
	}
	defer pool.Close()
	watching, end := context.WithCancel(r.ctx)
	defer end()
	go pool.WatchLockWaits(watching, func(wait postgres.LockWait) {
		fmt.Fprintf(r.Stderr, "Waiting: %s\n", plain(wait.String(), 1000))
	})
	return postgres.Mask(fn(app.NewAdmin(pool, o.Slot, r.parser.Flow)), o.DatabaseURL.Live())
}

// reasonOption is for what may be done without a reason.
type reasonOption struct {
	Why string `type:"reason" placeholder:"TEXT" help:"Reason, kept in walpost.audit with your user name."`
}

// changeOptions are those of commands that take something away for good.
type changeOptions struct {
	reasonOption
	DryRun bool `help:"Only count what would be changed."`
	Yes    bool `short:"y" help:"Do not ask."`
}

// check is for what kong cannot tell by tags; a command calls it from its Validate.
func (o changeOptions) check() error {
	if o.Why == "" && !o.DryRun {
		return errNoReason
	}
	return nil
}

var errNoReason = errors.New("--why is missing: say why, it is kept in walpost.audit")

// askPerson lets a person at a terminal decide about what the question says. Without one, --yes must have.
func (o changeOptions) askPerson(r *run, question string) error {
	if o.Yes {
		return nil
	}
	if !isTerminal(r.Stdin) {
		return config.Invalid(errNoOne)
	}
	return answered(r.ctx, r.Stdin, r.Stderr, question)
}

var errNoOne = errors.New("no one is here to ask: add --yes, or --dry-run to see what would be changed")

// answered returns nil if the answer is yes.
func answered(ctx context.Context, in io.Reader, out io.Writer, question string) error {
	fmt.Fprintf(out, "%s Type yes to go on: ", question)
	line := make(chan string, 1) // the reader may be left behind by a Ctrl-C
	go func() {
		text, _ := bufio.NewReader(in).ReadString('\n')
		line <- text
	}()
	select {
	case text := <-line:
		switch {
		case strings.EqualFold(strings.TrimSpace(text), "yes"):
			return nil
		case text == "": // the end: /dev/null looks like a terminal
			return config.Invalid(errNoOne)
		}
	case <-ctx.Done():
		fmt.Fprintln(out)
	}
	return errors.New("nothing was changed")
}

// who is the user of the operating system, for the audit.
func who() string {
	current, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return current.Username
}

// checkLimit is for a list that is cut: 0 would show nothing and look like all.
func checkLimit(limit int) error {
	if limit < 1 {
		return errors.New("--limit: must be at least 1")
	}
	return nil
}

// when is a time on the command line.
type when struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *when) UnmarshalText(text []byte) error {
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if at, err := time.Parse(layout, string(text)); err == nil {
			w.Time = at
			return nil
		}
	}
	ago, err := config.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no time: write 2026-01-31, 2026-01-31T15:04:05Z, or how long ago: 30m, 2h, 7d", text)
	}
	w.Time = time.Now().Add(-ago.Std())
	return nil
}

// plain makes a line of at most n characters out of text from anywhere: an error or a key must not move
// the cursor of a terminal.
func plain(text string, n int) string {
	text = strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case !unicode.IsPrint(c):
			return '\uFFFD'
		}
		return c
	}, text)
	if runes := []rune(text); len(runes) > n { // any number of marks can stand on one character
		text = string(runes[:n-1]) + "…"
	}
	return text
}

// age says how long ago something was.
func age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return printable.Age(now.Sub(then))
}

// tableOf are counts as rows for columns.
func tableOf(counts []debt.Count) [][]string {
	rows := [][]string{{"SUBSCRIBER", "STATE", "DELIVERIES"}}
	for _, c := range counts {
		rows = append(rows, []string{plain(c.Subscriber, 64), c.State, strconv.FormatInt(c.Number, 10)})
	}
	return rows
}

func needsDSN(option string, dsn config.Secret) error {
	if dsn == "" {
		return fmt.Errorf("%s is not set: try WALPOST_%s=postgres://user:password@host:5432/database", option, strings.ToUpper(option))
	}
	return readableDSN(option, dsn)
}

// readableDSN parses the connection string with package postgres, which keeps passwords out of its errors.
func readableDSN(option string, dsn config.Secret) error {
	if _, err := postgres.ConnConfig(dsn.Live()); err != nil {
		return fmt.Errorf("%s: %w", option, err)
	}
	return nil
}
