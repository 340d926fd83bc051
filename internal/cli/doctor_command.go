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

type doctorCommand struct {
	config.File
	config.Relay
	StandbyURL config.Secret `name:"standby" file:"standby_url" env:"WALPOST_STANDBY_URL" placeholder:"DSN" help:"Connection string of a standby. Only the standby shows whether it has the slot."`
	JSON       bool          `name:"json" help:"Print JSON."`
	Verbose    bool          `name:"verbose" short:"v" help:"List the checks that are fine as well."`
}

func (doctorCommand) Help() string {
	return `Examples:

  walpost doctor
  walpost doctor --json | jq -r '.findings[] | select(.level == "problem") | .fix.sql[]? + ";"'

Checks settings, rights, publication, slot, standby and tables, and prints the fix: SQL wherever SQL can do it. It changes nothing, and works with the relay up or down. Give it the configuration and the role of the relay.

Exit code 0: fine, perhaps with warnings. 1: problems. docs/doctor.md explains each check.`
}

// Validate is called by kong.
func (c doctorCommand) Validate() error {
	return config.Invalid(needsDSN("database_url", c.DatabaseURL), readableDSN("replication_url", c.ReplicationURL), readableDSN("standby_url", c.StandbyURL))
}

var errProblems = errors.New("the doctor found problems")

func (c doctorCommand) Run(r *run) error {
	c.Flow = r.parser.Flow
	options := app.DoctorOptions(c.Relay)
	options.StandbyURL = c.StandbyURL.Live()
	report := doctor.Run(r.ctx, options)
	if c.JSON {
		if err := writeJSON(r.Stdout, report); err != nil {
			return err
		}
	} else {
		printReport(r.Stdout, report, c.Verbose)
	}
	if n := report.Count(doctor.Problem); n > 0 {
		return fmt.Errorf("%w: %d", errProblems, n)
	}
	return nil
}

// printReport prints what is not fine, the worst first, with what there is to do; and how many checks are fine. With all
// it lists those, too.
func printReport(w io.Writer, report doctor.Report, all bool) {
	fmt.Fprintf(w, "%s\n\n", report.Server)
	width := 0
	for _, f := range report.Findings {
		width = max(width, len(f.Check))
	}
	indent := strings.Repeat(" ", len(doctor.Warning)+2)
	for _, level := range doctor.Levels() {
		fine := level == doctor.OK || level == doctor.Skipped
		if fine && !all {
			continue
		}
		for _, f := range report.Findings {
			if f.Level != level {
				continue
			}
			text := plain(f.Finding, 1000)
			if f.Subject != "" {
				text = plain(f.Subject, 64) + ": " + text
			}
			fmt.Fprintf(w, "%-*s  %-*s  %s\n", len(doctor.Warning), f.Level, width, f.Check, text)
			if fine {
				continue
			}
			if f.Reason != "" {
				fmt.Fprintf(w, "%swhy:  %s\n", indent, plain(f.Reason, 1000))
			}
			printFix(w, indent, f.Fix)
		}
	}
	hint := " (-v lists them)"
	if all {
		hint = ""
	}
	count := func(level doctor.Level, one, more string) string {
		if n := report.Count(level); n != 1 {
			return fmt.Sprintf("%d %s", n, more)
		}
		return "1 " + one
	}
	fmt.Fprintf(w, "\n%s, %s, %d unknown; %d fine, %d with nothing to check%s\n",
		count(doctor.Problem, "problem", "problems"), count(doctor.Warning, "warning", "warnings"), report.Count(doctor.Unknown),
		report.Count(doctor.OK), report.Count(doctor.Skipped), hint)
}

func printFix(w io.Writer, indent string, fix *doctor.Fix) {
	if fix == nil {
		return
	}
	if len(fix.SQL) > 0 {
		fmt.Fprintf(w, "%sfix, as %s:\n", indent, fix.As)
		for _, sql := range fix.SQL {
			fmt.Fprintf(w, "%s      %s;\n", indent, plain(sql.String(), 10_000))
		}
	}
	if fix.Restart {
		fmt.Fprintf(w, "%s      and restart the server\n", indent)
	}
	switch {
	case fix.Do != "" && len(fix.SQL) > 0:
		fmt.Fprintf(w, "%sthen: %s\n", indent, plain(fix.Do, 10_000))
	case fix.Do != "":
		fmt.Fprintf(w, "%sfix:  %s\n", indent, plain(fix.Do, 10_000))
	}
}
