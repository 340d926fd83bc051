package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/doctor"
)

type sourcesCommand struct {
	config.File
	config.Database
	Table string `placeholder:"SCHEMA.TABLE" help:"A table that is no source yet."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

func (sourcesCommand) Help() string {
	return `Examples:

  walpost sources
  walpost sources --table public.my_outbox

For each table: where each part of an event comes from, what is missing, which rights the role needs, and the source as walpost.yaml would have it. It reads the catalogue and no row, and changes nothing. Give it the role of the relay.

Exit code 0: the rows of each table can be events. 1: those of some table cannot.`
}

// Validate is called by kong.
func (c sourcesCommand) Validate() error {
	err := config.Invalid(needsDSN("database_url", c.DatabaseURL))
	if _, _, ok := config.SplitTable(c.Table); c.Table != "" && !ok {
		err = config.Invalid(err, fmt.Errorf("--table: %q is not schema.table, as in public.my_outbox", c.Table))
	}
	return err
}

var errNotUnderstood = errors.New("no event can be made of the rows of a table")

func (c sourcesCommand) Run(r *run) error {
	flow := r.parser.Flow
	if c.Table != "" {
		flow = config.Flow{Sources: []config.Source{config.SourceOf(c.Table)}}
	}
	reports, err := doctor.Sources(r.ctx, doctor.Options{DatabaseURL: c.DatabaseURL.Live(), Sources: app.SourcesOf(flow)})
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeJSON(r.Stdout, map[string]any{"sources": reports})
	} else {
		for _, report := range reports {
			printSource(r.Stdout, report)
		}
	}
	for _, report := range reports {
		if err == nil && report.Problem != "" {
			err = fmt.Errorf("%w: %s", errNotUnderstood, report.Table)
		}
	}
	return err
}

func printSource(w io.Writer, s doctor.SourceReport) {
	if s.Messages != "" {
		fmt.Fprintf(w, "%s: logical messages with the prefix %s\n\n  Their parts have the names that docs/writing-events.md lists; there is no table, no mark and no repair.\n\n", s.Name, plain(s.Messages, 100))
		return
	}
	state := "an event can be made of each row"
	if s.Problem != "" {
		state = "NOT UNDERSTOOD"
	}
	fmt.Fprintf(w, "%s: table %s, %s\n\n", s.Name, plain(s.Table, 130), state)
	rows := [][]string{{"  PART", "FROM", "TYPE", "HOW"}}
	for _, p := range s.Parts {
		from, how := plain(p.From, 100), p.How
		if p.From == "" {
			from = "-"
			if p.Required {
				how = "MISSING, and needed"
			}
			how += ": tried " + strings.Join(p.Tried, ", ")
			if p.Guess != "" {
				how += "; perhaps " + plain(p.Guess, 64)
			}
		}
		rows = append(rows, []string{"  " + p.Name, from, plain(p.Type, 64), how})
	}
	if len(s.Parts) > 0 {
		columns(w, rows)
		fmt.Fprintln(w)
	}
	line := func(label, text string) {
		if text != "" {
			fmt.Fprintf(w, "  %-12s %s\n", label, plain(text, 1000))
		}
	}
	line("problem", s.Problem)
	for _, warning := range s.Warnings {
		line("warning", warning)
	}
	line("a row is", strings.Join(s.PrimaryKey, ", "))
	line("repair reads", strings.Join(s.Order, ", "))
	if s.Problem == "" {
		marked := strings.Join(s.Marked, ", ")
		if marked == "" {
			marked = "nothing: after a lost slot it is not known which events were not delivered"
		}
		line("a mark sets", marked)
	}
	line("not used", strings.Join(s.Unused, ", "))
	if s.Rights != "" {
		has := "has them"
		if len(s.Lacking) > 0 {
			has = "lacks " + strings.Join(s.Lacking, "; ")
		}
		line("rights", fmt.Sprintf("%s for role %q, which %s", s.Rights, s.Role, has))
		for _, grant := range s.Grants {
			line("", plain(grant.String(), 1000)+";")
		}
	}
	if s.Suggestion != "" {
		fmt.Fprintln(w, "\n  walpost.yaml:")
		for text := range strings.Lines(s.Suggestion) {
			fmt.Fprint(w, "    "+plain(strings.TrimSuffix(text, "\n"), 300)+"\n")
		}
	}
	fmt.Fprintln(w)
}
