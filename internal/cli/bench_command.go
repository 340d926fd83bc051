package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/bench"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/subscriber"
)

// benchCommand reads no file and no variable: it is told where to work, or makes a server of its own.
type benchCommand struct {
	DatabaseURL config.Secret   `placeholder:"DSN" help:"Server to measure with, as a URL of a role that may create databases and slots; a private one is made without it."`
	Case        []string        `enum:"${cases}" placeholder:"NAME" help:"Measure this only, repeatable: ${cases}."`
	Transport   []string        `enum:"tcp,tls,unix" placeholder:"NAME" help:"Connection of the case noop: tcp, tls, unix, one or several. With --database-url the URL decides."`
	Shape       []string        `enum:"1,100,huge" placeholder:"ROWS" help:"Rows in a transaction of a backlog, repeatable: 1, 100, huge. Default all."`
	Events      int             `default:"200000" placeholder:"N" help:"Events of a backlog; slower cases take a part of them, the case memory ten times as many."`
	Payload     []string        `placeholder:"BYTES" help:"Bytes of a payload, 230 at least, one or several: 250,10k,200k. Default 250, and one stream each of the others."`
	Subscribers []int           `placeholder:"N" help:"No-op subscribers that drain a backlog, one or several. Default 3, and one stream for 30."`
	Full        bool            `help:"The case noop over every connection, in every shape, with every size and number of subscribers. Takes three quarters of an hour."`
	Rate        int             `default:"1000" placeholder:"N" help:"Events a second where latency is measured."`
	Brokers     []string        `placeholder:"HOST:PORT" help:"Kafka brokers, one or several, where the case kafka may make topics. Without them that case is not run."`
	Turns       int             `default:"3" placeholder:"N" help:"How often each contestant runs."`
	Timed       config.Duration `type:"duration" default:"5s" placeholder:"DURATION" help:"How long each measurement by the clock goes on."`
	Idle        config.Duration `type:"duration" default:"60s" placeholder:"DURATION" help:"How long the idle relay is watched."`
	Quick       bool            `help:"A run of about a minute, which shows that everything works and little else."`
	JSON        bool            `name:"json" help:"Print JSON, to be kept."`
	Markdown    bool            `help:"Print the table as docs/performance.md has it."`
	CPUProfile  string          `name:"cpuprofile" hidden:"" placeholder:"FOLDER" help:"Write profiles of CPU and allocations of each relay that drains."`
	LogLevel    slog.Level      `type:"loglevel" default:"warn" placeholder:"LEVEL" help:"debug shows each single measurement."`
}

// benchVars are what the tags of benchCommand refer to.
func benchVars() kong.Vars { return kong.Vars{"cases": strings.Join(bench.Cases(), ",")} }

func (benchCommand) Help() string {
	return `Examples:

  walpost bench
  walpost bench --quick
  walpost bench --case noop --shape 1 --events 100000 --turns 3
  walpost bench --case noop --transport tls,unix --payload 250,10k
  walpost bench --json > bench.json

Each result is a ratio within this run: the median of several turns, with the least and the greatest. The report adds the least ratio that is good enough, and the ratio to aim at. A case is reported as not run if its contestant is not installed. Takes about ten minutes and leaves nothing behind.`
}

// quick is what --quick makes of the sizes.
func (c *benchCommand) quick() {
	c.Events, c.Turns = 20_000, 1
	c.Timed, c.Idle = config.Duration(time.Second), config.Duration(2*time.Second)
}

func (c benchCommand) Validate() error {
	var errs []error
	values := map[string]int{"events": c.Events, "rate": c.Rate, "turns": c.Turns}
	if len(c.Subscribers) > 0 {
		values["subscribers"] = slices.Min(c.Subscribers)
	}
	if payloads, err := c.payloads(); err != nil {
		errs = append(errs, err)
	} else if len(payloads) > 0 {
		values["payload"] = slices.Min(payloads)
	}
	if c.DatabaseURL != "" && len(c.Transport) > 0 {
		errs = append(errs, errors.New("--transport: with --database-url the URL decides"))
	}
	for name, value := range values {
		if value < 1 {
			errs = append(errs, fmt.Errorf("--%s: must be at least 1", name))
		}
	}
	for name, value := range map[string]config.Duration{"timed": c.Timed, "idle": c.Idle} {
		if value.Std() < time.Second {
			errs = append(errs, fmt.Errorf("--%s: must be at least 1s", name))
		}
	}
	if c.JSON && c.Markdown {
		errs = append(errs, errors.New("--json and --markdown: choose one"))
	}
	if c.DatabaseURL != "" {
		errs = append(errs, readableDSN("database_url", c.DatabaseURL))
	}
	return config.Invalid(errs...)
}

// payloads are the sizes asked for: a number of bytes, or of thousands with a k.
func (c benchCommand) payloads() ([]int, error) {
	var sizes []int
	for _, text := range c.Payload {
		digits, thousands := strings.CutSuffix(text, "k")
		n, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("--payload: %q is no number of bytes: write 250 or 10k", text)
		}
		if thousands {
			n *= 1000
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// streams are those of the case noop.
func (c benchCommand) streams(payloads []int) []bench.Stream {
	streams := bench.Choice{Transports: c.Transport, Shapes: c.Shape, Payloads: payloads, Subscribers: c.Subscribers, Full: c.Full}.Streams()
	if c.DatabaseURL == "" {
		return streams
	}
	var all []bench.Stream
	for _, s := range streams {
		if s.Transport = ""; !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

func (c benchCommand) Run(r *run) error {
	if c.Quick {
		c.quick()
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if c.CPUProfile != "" {
		if c.CPUProfile, err = filepath.Abs(c.CPUProfile); err != nil {
			return err
		}
	}
	payloads, err := c.payloads()
	if err != nil {
		return err
	}
	live := isTerminal(r.Stderr)
	begun := time.Now()
	report, err := bench.Run(r.ctx, bench.Options{
		DatabaseURL: c.DatabaseURL.Reveal(), Cases: c.Case, Streams: c.streams(payloads),
		Events: c.Events, Payload: append(payloads, 250)[0], Subscribers: append(c.Subscribers, 3)[0], Rate: c.Rate, Turns: c.Turns,
		Timed: c.Timed.Std(), Idle: c.Idle.Std(),
		Program: program, Brokers: c.Brokers, Kinds: r.Subscribers.Names(), Profiles: c.CPUProfile,
		Progress: func(done, total int, what string) {
			if live {
				drawBar(r.Stderr, done, total, what)
			}
		},
		Log: slog.New(slog.NewTextHandler(r.Stderr, &slog.HandlerOptions{Level: c.LogLevel})),
	})
	if live {
		fmt.Fprint(r.Stderr, "\r\x1b[K")
	}
	if report != nil { // what was measured before an error is worth having
		report.Took = time.Since(begun).Round(time.Second).String()
		err = errors.Join(app.UnlessStopped(r.ctx, err), c.print(r.Stdout, report))
	}
	return app.UnlessStopped(r.ctx, err)
}

func (c benchCommand) print(w io.Writer, report *bench.Report) error {
	switch {
	case c.JSON:
		return writeJSON(w, report)
	case c.Markdown:
		return report.WriteMarkdown(w)
	default:
		return report.WriteText(w, columns)
	}
}

// benchPart are the processes that a run consists of. Each ends when the bench that started it does.
type benchPart struct {
	Run     benchRun     `cmd:"" help:"Run another command of walpost, with the subscribers of the bench."`
	Receive benchReceive `cmd:"" help:"Take what is posted, and print the address on standard error."`
	Post    benchPost    `cmd:"" help:"Post to a receiver as fast as Go's HTTP client can."`
	Produce benchProduce `cmd:"" help:"Send records to Kafka as fast as its client can."`
	Clean   benchClean   `cmd:"" help:"Remove a database and its slots when standard input ends."`
}

type benchRun struct {
	Expect     int      `help:"Say when a subscriber has handled so many events."`
	Stamp      bool     `help:"Say at the end when each event was handled."`
	CPUProfile string   `name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile, and one of allocations to FILE.allocs."`
	Args       []string `arg:"" passthrough:"" help:"Command."`
}

func (c benchRun) Run(r *run) (err error) {
	go bench.EndWithStdin(r.Stdin)
	if c.CPUProfile != "" {
		file, err := os.Create(c.CPUProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, writeAllocs(c.CPUProfile+".allocs"))
		}()
	}
	watcher := bench.NewWatcher(c.Expect, c.Stamp, r.Stdout)
	args := slices.Clone(c.Args)
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	code := r.main(r.ctx, Process{Args: args, Lookup: r.Lookup, Stdout: r.Stdout, Stderr: r.Stderr, Subscribers: watched(benchKinds(r.Subscribers), watcher)})
	watcher.Close()
	if code != exitFine {
		return fmt.Errorf("the command ended with exit code %d", code)
	}
	return nil
}

// writeAllocs writes where the process has allocated since it began.
func writeAllocs(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return pprof.Lookup("allocs").WriteTo(file, 0)
}

// benchKinds adds the subscribers of the bench.
func benchKinds(kinds app.Kinds) app.Kinds {
	kinds = maps.Clone(kinds)
	kinds["bench-noop"] = app.Kind{New: func(r app.Resources) (subscriber.Subscriber, error) { return bench.Noop(r.Config.Name), nil }}
	kinds["bench-down"] = app.Kind{New: func(r app.Resources) (subscriber.Subscriber, error) {
		return bench.Down{Noop: bench.Noop(r.Config.Name)}, nil
	}}
	kinds["bench-slow"] = app.Kind{New: func(r app.Resources) (subscriber.Subscriber, error) {
		return bench.Slow{Noop: bench.Noop(r.Config.Name)}, nil
	}}
	return kinds
}

// watched has a watcher look at what each kind makes.
func watched(kinds app.Kinds, watcher *bench.Watcher) app.Kinds {
	all := app.Kinds{}
	for name, kind := range kinds {
		build := kind.New
		kind.New = func(r app.Resources) (subscriber.Subscriber, error) {
			sub, err := build(r)
			if err != nil {
				return nil, err
			}
			return watcher.Watch(sub), nil
		}
		all[name] = kind
	}
	return all
}

type benchReceive struct{}

func (benchReceive) Run(r *run) error {
	go bench.EndWithStdin(r.Stdin)
	return bench.Receive(r.ctx, r.Stderr)
}

type benchPost struct {
	URL     string `name:"url" required:""`
	Events  int    `required:""`
	Payload int    `required:""`
}

func (c benchPost) Run(r *run) error {
	go bench.EndWithStdin(r.Stdin)
	return bench.Post(r.ctx, c.URL, c.Events, c.Payload, r.Stdout)
}

type benchProduce struct {
	Brokers []string `required:""`
	Topic   string   `required:""`
	Events  int      `required:""`
	Payload int      `required:""`
}

func (c benchProduce) Run(r *run) error {
	go bench.EndWithStdin(r.Stdin)
	return bench.Produce(r.ctx, c.Brokers, c.Topic, c.Events, c.Payload, r.Stdout)
}

type benchClean struct {
	Database string `required:""`
	Folder   string `required:""`
}

func (c benchClean) Run(r *run) error {
	url, _ := r.Lookup("WALPOST_BENCH_DATABASE_URL")
	return bench.Clean(r.Stdin, url, c.Database, c.Folder)
}
