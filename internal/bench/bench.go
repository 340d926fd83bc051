// Package bench measures what walpost promises about speed and memory. Every figure is a ratio within one
// run on one machine: walpost compared with something plain that does the same work, in turns whose order
// rotates, as the median with the least and the greatest. It runs walpost as a process of its own, so that
// processor time and memory are walpost's alone, and it judges nothing beyond saying whether a bar holds.
//
// The cases stand in a file each; lab.go is where they work, child.go the processes, watch.go what runs in
// them. Who calls it is package app.
package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Options say what is measured, and how large.
type Options struct {
	// DatabaseURL is a server to work on, as a URL of a role that may create databases and slots; "" makes
	// a private one. A database is made there for the time of the run.
	DatabaseURL string
	// Cases are names from Cases; none means all.
	Cases []string
	// Streams are what the case noop drains; see Choice.
	Streams []Stream
	// Events of a backlog, and bytes of the payload of each. Cases that are slower by nature take a part of
	// them, the case memory ten times as many.
	Events, Payload int
	// Subscribers is how many no-op subscribers drain a backlog, where no Stream says it.
	Subscribers int
	// Rate is events a second where a steady rate is asked for.
	Rate int
	// Turns is how often each contestant runs; the case memory runs once.
	Turns int
	// Timed is how long what is measured by the clock goes on, Idle how long the idle relay is watched.
	Timed, Idle time.Duration
	// Program is the binary whose command bench-part runs the processes of a run. Kinds are the
	// subscribers that it has.
	Program string
	Kinds   []string
	// Brokers are those of a Kafka, for the case kafka.
	Brokers []string
	// Profiles is a folder for profiles of each process that drains, and of the API; "" for none.
	Profiles string
	// Progress is told of each step before it begins; nil is silence. It is called by one goroutine.
	Progress func(done, total int, what string)
	Log      *slog.Logger
}

// Shapes of a backlog: one row a transaction, a hundred, all rows in one.
var Shapes = []string{"1", "100", "huge"}

// A measure is a case: it runs contestants and adds rows to the report.
type measure struct {
	name  string
	steps func(Options) int // how often it tells Progress
	run   func(context.Context, *lab) error
}

func measures() []measure {
	turns := func(contestants int) func(Options) int {
		return func(o Options) int { return contestants * o.Turns }
	}
	return []measure{
		{"noop", func(o Options) int { return 2 * o.Turns * len(o.Streams) }, noop},
		{"debt", turns(2), intoDebt},
		{"builtin", turns(3), builtin},
		{"webhook", turns(2), webhook},
		{"kafka", turns(2), kafka},
		{"memory", func(Options) int { return 1 }, memory},
		{"latency", turns(3), latency},
		{"producer", turns(2), producer},
		{"idle", func(Options) int { return 1 }, idle},
		{"write", turns(2), writeSide},
	}
}

// Cases are the names of all cases, in the order in which they run.
func Cases() []string {
	var names []string
	for _, m := range measures() {
		names = append(names, m.name)
	}
	return names
}

// Run measures. It returns what it has measured so far together with the error that ended it. When it
// returns, nothing that it made is left on the server; that holds also if the process is killed.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	var chosen []measure
	total := 0
	for _, m := range measures() {
		if len(o.Cases) == 0 || slices.Contains(o.Cases, m.name) {
			chosen = append(chosen, m)
			total += m.steps(o)
		}
	}
	l, err := openLab(ctx, o, total)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, m := range chosen {
		l.current = m.name
		before := l.done
		if err := m.run(ctx, l); err != nil {
			return l.report, fmt.Errorf("case %s: %w", m.name, err)
		}
		l.done = before + m.steps(o) // a case that cannot run has taken no steps
	}
	l.reportPeaks()
	return l.report, nil
}

// A contestant does the work of a case once.
type contestant struct {
	name string
	run  func(context.Context) (sample, error)
}

// sample is what one run of a contestant showed; a case fills in what it compares.
type sample struct {
	rate   float64       // events a second
	cpu    float64       // microseconds of processor time for an event, of the client alone
	allocs float64       // allocations for an event
	p50    time.Duration // from commit to handler
	p99    time.Duration
}

func rateOf(s sample) float64   { return s.rate }
func cpuOf(s sample) float64    { return s.cpu }
func allocsOf(s sample) float64 { return s.allocs }
func p50Of(s sample) float64    { return float64(s.p50.Microseconds()) }
func p99Of(s sample) float64    { return float64(s.p99.Microseconds()) }

// turns runs all contestants Turns times. The order rotates, so that no one always finds the caches as the
// same other has left them. The result has the samples of each in the order of the turns.
func (l *lab) turns(ctx context.Context, what string, all ...contestant) ([][]sample, error) {
	samples := make([][]sample, len(all))
	for turn := range l.Turns {
		for i := range all {
			n := (i + turn) % len(all)
			l.step(fmt.Sprintf("%s: %s, turn %d", what, all[n].name, turn+1))
			s, err := all[n].run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", all[n].name, err)
			}
			l.Log.Debug("measured", "case", what, "contestant", all[n].name, "turn", turn+1,
				"rate", s.rate, "cpu_us", s.cpu, "allocs", s.allocs, "p50", s.p50, "p99", s.p99)
			samples[n] = append(samples[n], s)
		}
	}
	return samples, nil
}

func (l *lab) step(what string) {
	if l.Progress != nil {
		l.Progress(l.done, l.total, what)
	}
	l.done++
}
