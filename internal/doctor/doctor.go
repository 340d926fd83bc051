// Package doctor checks everything that must hold around the relay: settings, rights, publication, slot,
// standby, tables. Each check has a stable id and reports what it found, why it matters and what fixes it, as
// SQL wherever SQL can. It reads in read-only transactions and never changes anything: a person acts on a
// finding. The relay works without the doctor, and the doctor without a relay.
//
// Read next: checks.go has the list of checks, checker.go runs them, and each other file is a subject.
// docs/doctor.md explains the checks to a reader of a report.
package doctor

import (
	"context"
	"time"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/migrations"
)

// A Level is how bad a finding is.
type Level string

const (
	// OK means that all is as it should be.
	OK Level = "ok"
	// Warning means that the relay works, but something is not as it should be, or will hurt on a bad day.
	Warning Level = "warning"
	// Problem means that the relay cannot work, or loses its promises.
	Problem Level = "problem"
	// Unknown means that the check could not be made. It is never as good as OK.
	Unknown Level = "unknown"
	// Skipped means that what the check is about is not there: no slot yet, no source with a table, a setting that the
	// server's version does not have. It says nothing about how well things stand.
	Skipped Level = "skipped"
)

// Levels are all levels, the worst first.
func Levels() []Level { return []Level{Problem, Warning, Unknown, Skipped, OK} }

// A Finding is what one check says about one subject.
type Finding struct {
	// Check is the id of the check: kebab-case, the same in every version, a heading of docs/doctor.md.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Subject is what it is about where there can be several: a source, a table, a slot.
	Subject string `json:"subject,omitempty"`
	// Finding is what was found, as a sentence without a full stop.
	Finding string `json:"finding"`
	// Reason says why it matters.
	Reason string `json:"reason,omitempty"`
	// Fix says what to do; nil where nothing is to be done.
	Fix *Fix `json:"fix,omitempty"`
}

// Fix is what turns a finding into OK.
type Fix struct {
	// As is who may run SQL, and where: "a superuser", "the owner of public.outbox".
	As string `json:"as,omitempty"`
	// SQL are statements, to be run one by one and outside of a transaction, in the database that the report names. None
	// touches what does not belong to this configuration.
	SQL []advice.Statement `json:"sql,omitempty"`
	// Restart means that the server must be restarted, after SQL if there is any.
	Restart bool `json:"restart"`
	// Do is what no SQL can: who must do what. With SQL, it comes afterwards.
	Do string `json:"do,omitempty"`
}

// A Report is the result of one run.
type Report struct {
	At time.Time `json:"at"`
	// Server is what was checked, without a password.
	Server   string    `json:"server"`
	Findings []Finding `json:"findings"`
}

// Count says how many findings have the level.
func (r Report) Count(level Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// Options say what to check. All but the connection strings and names may be left out.
type Options struct {
	// DatabaseURL and ReplicationURL are those of the relay; ReplicationURL "" is DatabaseURL.
	DatabaseURL, ReplicationURL string
	// StandbyURL leads to a standby of the server: only there can be seen whether it has the slot. "" leaves
	// that unknown.
	StandbyURL string

	Slot, Publication string
	Sources           []*outbox.Source
	// Subscribers are those of the configuration.
	Subscribers []Subscriber
	// Migrations are the sets that the configuration stands on.
	Migrations []migrations.Set
	// Drain is how long a stop of the relay may take.
	Drain time.Duration
	// WALBudget is how many bytes of WAL debt may hold; negative for the relay's own choice.
	WALBudget int64
	// StopOnLoss leaves every repair to a person: on_lost_slot is stop.
	StopOnLoss bool

	// Cheap leaves out what costs more than a read of the catalogue: connections of their own and reads
	// of tables.
	Cheap bool
	// OldAfter is when a transaction that runs and a row that waits count as old; 0 is an hour.
	OldAfter time.Duration
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// Subscriber is what the checks have to know about one.
type Subscriber struct {
	Name string
	// RenamedFrom is the name that it had before.
	RenamedFrom string
	// Timeout is the deadline of its handler, StallAfter when an event of it becomes debt.
	Timeout, StallAfter time.Duration
	// Tables are those that it writes to or reads from, with the rights that it needs.
	Tables []Grant
	// Outside means that it hands events to a receiver of its own kind, which dedupes on their ids. Sources are
	// those whose events it takes; none means all.
	Outside bool
	Sources []string
	// Probe asks its destination whether that would take events; nil where there is none to ask.
	Probe func(context.Context) error
	// Filter is what it takes: by the configuration, and of the types that its kind understands.
	Filter event.Filter
}

// Grant is a set of rights on a table.
type Grant struct {
	Schema, Table string
	// Rights are words of GRANT: SELECT, INSERT, UPDATE, DELETE.
	Rights []string
}

// Run makes all checks, or the cheap ones. It never fails: what keeps a check from being made is a finding
// of level Unknown, and one such never hides another. Without a connection to the database that is the one finding. It uses one connection to the database at a time,
// and for those that are not cheap one to the standby and one of replication.
func Run(ctx context.Context, o Options) Report { return runChecks(ctx, o.withDefaults(), checks) }

func (o Options) withDefaults() Options {
	if o.ReplicationURL == "" {
		o.ReplicationURL = o.DatabaseURL
	}
	if o.OldAfter == 0 {
		o.OldAfter = time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func ok(text string) Finding { return Finding{Level: OK, Finding: text} }
func warning(text, why string, fix *Fix) Finding {
	return Finding{Level: Warning, Finding: text, Reason: why, Fix: fix}
}
func problem(text, why string, fix *Fix) Finding {
	return Finding{Level: Problem, Finding: text, Reason: why, Fix: fix}
}
func unknown(text, why string) Finding { return Finding{Level: Unknown, Finding: text, Reason: why} }

func skipped(text string) Finding { return Finding{Level: Skipped, Finding: text} }

// fine reports whether there is nothing to do.
func (f Finding) fine() bool { return f.Level == OK || f.Level == Skipped }

func (f Finding) about(subject string) Finding {
	f.Subject = subject
	return f
}
