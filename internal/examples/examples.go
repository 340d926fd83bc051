// Package examples runs the examples of deploy/examples: a private Postgres, a broker where one is needed, the program, the
// traffic, and what came of it. It is for "make example" and for the tests of the house.
package examples

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
)

// patience is how long a step may take.
const patience = 2 * time.Minute

// example is what of one cannot be read in its folder.
type example struct {
	migrate []string       // further arguments of walpost migrate
	topics  map[string]int // with so many partitions; none: it needs no broker
	records int            // that arrive in them, where no mark tells that all have
	stream  *jetstream.StreamConfig
	open    string   // counts the rows that are not published
	dead    int      // dead letters that there are in the end
	posts   int      // that a receiver of webhooks gets; none: it needs no receiver
	follow  []string // aggregates that clients of a hub follow; none: it has no hub
	moves   int64    // the last revision of each
	look    []string // queries whose result is printed
}

var known = map[string]example{
	"debezium": {
		topics:  map[string]int{"outbox.event.order": 3, "outbox.event.shipment": 3},
		records: 13,
		look:    []string{"SELECT (SELECT count(*) FROM outbox) AS orders, (SELECT count(*) FROM shipping.outbox) AS shipments"},
	},
	"game": {
		follow: []string{"game/42", "game/43"}, moves: 6,
		open: "SELECT count(*) FROM outbox WHERE published_at IS NULL",
		look: []string{"SELECT id, revision, board FROM games ORDER BY id"},
	},
	"lessons": {
		migrate: []string{"--lessons"},
		open:    "SELECT count(*) FROM school.outbox WHERE published_at IS NULL",
		look: []string{
			"SELECT user_id, string_agg(lesson_slug, ' ' ORDER BY ctid) FROM analytics_events GROUP BY 1 ORDER BY 1",
			"SELECT count(*) AS rows, count(published_at) AS published, sum(attempts) AS failed_attempts FROM school.outbox",
		},
	},
	"messages": {
		posts: 10,
		look:  []string{"SELECT status, count(*) FROM orders GROUP BY 1"},
	},
	"payments": {
		topics: map[string]int{"payments": 6},
		open:   "SELECT count(*) FROM payment_outbox WHERE published_at IS NULL",
		look:   []string{"SELECT count(*) AS rows, count(published_at) AS published FROM payment_outbox"},
	},
	"thoughts": {
		stream: &jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}, Duplicates: time.Hour},
		open:   "SELECT count(*) FROM outbox_events WHERE NOT delivered AND event_type <> 'thought.forgotten' AND NOT (event_type = 'thought.liked' AND payload -> 'by' IS NULL)",
		dead:   2,
		look:   []string{"SELECT count(*) AS rows, count(*) FILTER (WHERE delivered) AS delivered, count(delivered_at) AS with_time FROM outbox_events"},
	},
}

// Names are those of the examples.
func Names() []string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Run runs one, from its folder and with a binary of the program. What there is to see it writes to out.
func Run(ctx context.Context, program, folder string, out io.Writer) (err error) {
	name := filepath.Base(folder)
	e, ok := known[name]
	if !ok {
		return fmt.Errorf("there is no example %q: there are %s", name, strings.Join(Names(), ", "))
	}
	r := &runner{ctx: ctx, folder: folder, program: program, out: out, env: os.Environ()}
	defer r.cleanUp()
	defer func() {
		if failed, is := recover().(failure); is {
			err = failed.error
		}
	}()
	r.printf("starting a private Postgres")
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		return err
	}
	r.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = server.Stop(stop)
	})
	db, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	r.Cleanup(func() { _ = db.Close(context.WithoutCancel(ctx)) })
	r.env = append(r.env, "WALPOST_DATABASE_URL="+server.DSN("postgres"), "WALPOST_OPS_LISTEN=127.0.0.1:0", "WALPOST_LOG_FORMAT=text")
	var broker *kafkatest.Broker
	if e.topics != nil {
		r.printf("starting a Kafka broker")
		broker = kafkatest.Start(r)
		for topic, partitions := range e.topics {
			broker.Topic(r, topic, partitions)
		}
		r.env = append(r.env, "KAFKA_BROKER="+broker.Address())
	}
	var js *natstest.Server
	if e.stream != nil {
		r.printf("starting a NATS server")
		js = natstest.Start(r)
		js.Stream(r, *e.stream)
		r.env = append(r.env, "NATS_SERVER="+js.Address())
	}
	var receiver *receiver
	if e.posts > 0 {
		receiver = startReceiver(r)
		r.env = append(r.env, "WEBHOOK_URL="+receiver.url, "WEBHOOK_SECRET="+receiver.secret)
	}
	var live *hub
	if e.follow != nil {
		live = newHub(r, "http://127.0.0.1")
	}
	r.execute(db, "schema.sql")
	r.walpost(append([]string{"migrate"}, e.migrate...)...)
	relay := r.startRelay()
	var followers []*follower
	for _, aggregate := range e.follow {
		followers = append(followers, live.follow(r, aggregate, e.moves))
	}
	r.execute(db, "traffic.sql")
	if e.open != "" {
		r.await("every row is published", func() bool {
			var open int
			if err := db.QueryRow(ctx, e.open).Scan(&open); err != nil {
				r.Fatal(err)
			}
			return open == 0
		})
	}
	if receiver != nil {
		r.await("the receiver has all", func() bool { return len(receiver.got()) >= e.posts })
		for _, post := range receiver.got() {
			r.printf("POST %s", post)
		}
	}
	for _, f := range followers {
		close(f.comeBack)
		if err := <-f.ended; err != nil {
			r.Fatalf("the client of %s: %w", f.aggregate, err)
		}
		for _, line := range f.got {
			r.printf("%s", line)
		}
	}
	topics := slices.Sorted(maps.Keys(e.topics))
	if e.records > 0 {
		r.await("all records are there", func() bool {
			n := 0
			for _, topic := range topics {
				n += len(broker.Records(r, topic))
			}
			return n >= e.records
		})
	}
	for _, topic := range topics {
		for _, record := range broker.Records(r, topic) {
			headers := ""
			for _, h := range record.Headers {
				headers += fmt.Sprintf(" %s=%s", h.Key, h.Value)
			}
			value := string(record.Value)
			if record.Value == nil {
				value = "(a tombstone)"
			}
			r.printf("%s/%d key=%s%s\n    %s", record.Topic, record.Partition, record.Key, headers, value)
		}
	}
	if js != nil {
		for _, m := range js.Messages(r, e.stream.Name) {
			r.printf("%s webhook-id=%s walpost-key=%s\n    %s", m.Subject, m.Header.Get("webhook-id"), m.Header.Get("walpost-key"), m.Data)
		}
	}
	if e.dead > 0 {
		r.showDead(e.dead)
	}
	for _, query := range e.look {
		r.show(db, query)
	}
	r.stopRelay(relay)
	r.printf("stopped clean")
	return nil
}

// runner is a kafkatest.T without a test.
type runner struct {
	ctx      context.Context // of the program: a runner lives as long as one call of Run
	folder   string
	program  string
	out      io.Writer
	env      []string
	cleanups []func()
}

type failure struct{ error }

// Helper implements kafkatest.T.
func (r *runner) Helper() {}

// Fatal ends the run.
func (r *runner) Fatal(args ...any) { panic(failure{errors.New(fmt.Sprint(args...))}) }

// Fatalf ends the run.
func (r *runner) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// TempDir makes a folder that goes with the run.
func (r *runner) TempDir() string {
	folder, err := os.MkdirTemp("", "walpost-example-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// Cleanup runs at the end, the last first.
func (r *runner) Cleanup(run func()) { r.cleanups = append(r.cleanups, run) }

// Context is that of the program.
func (r *runner) Context() context.Context { return r.ctx }

func (r *runner) cleanUp() {
	for _, run := range slices.Backward(r.cleanups) {
		run()
	}
}

func (r *runner) printf(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *runner) execute(db *pgx.Conn, file string) {
	text, err := os.ReadFile(filepath.Join(r.folder, file))
	if err == nil {
		_, err = db.Exec(r.ctx, string(text))
	}
	if err != nil {
		r.Fatalf("%s: %w", file, err)
	}
}

func (r *runner) command(args ...string) *exec.Cmd {
	r.printf("$ walpost %s", strings.Join(args, " "))
	cmd := exec.Command(r.program, args...) //nolint:gosec // the program is ours
	cmd.Dir, cmd.Env = r.folder, r.env
	return cmd
}

func (r *runner) walpost(args ...string) {
	if output, err := r.command(append(args, "--config=walpost.yaml")...).CombinedOutput(); err != nil {
		r.Fatalf("walpost %s: %w\n%s", args[0], err, output)
	}
}

// showDead prints the dead letters when there are so many.
func (r *runner) showDead(want int) {
	var output []byte
	list := r.command("deadletters", "list", "--config=walpost.yaml")
	r.await("there are the dead letters", func() bool {
		var err error
		again := exec.Command(list.Path, list.Args[1:]...) //nolint:gosec // the program is ours
		again.Dir, again.Env = list.Dir, list.Env
		if output, err = again.CombinedOutput(); err != nil {
			r.Fatalf("walpost deadletters list: %w\n%s", err, output)
		}
		return bytes.Count(output, []byte("does not fit")) >= want
	})
	r.printf("%s", output)
}

// relay is a running relay with what it has logged.
type relay struct {
	cmd    *exec.Cmd
	exited chan error

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (r *relay) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(text)
}

func (r *relay) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *runner) startRelay() *relay {
	started := &relay{cmd: r.command("relay", "--config=walpost.yaml"), exited: make(chan error, 1)}
	started.cmd.Stdout, started.cmd.Stderr = started, started
	if err := started.cmd.Start(); err != nil {
		r.Fatal(err)
	}
	go func() { started.exited <- started.cmd.Wait() }()
	r.Cleanup(func() { _ = started.cmd.Process.Kill() })
	r.await("the relay streams", func() bool {
		select {
		case err := <-started.exited:
			r.Fatalf("the relay ended: %w\n%s", err, started.logged())
		default:
		}
		return strings.Contains(started.logged(), "msg=streaming")
	})
	return started
}

func (r *runner) stopRelay(started *relay) {
	if err := started.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.Fatal(err)
	}
	select {
	case err := <-started.exited:
		if err != nil {
			r.Fatalf("the relay did not stop clean: %w\n%s", err, started.logged())
		}
	case <-time.After(patience):
		r.Fatalf("the relay does not stop\n%s", started.logged())
	}
}

func (r *runner) await(what string, so func() bool) {
	for begun := time.Now(); !so(); time.Sleep(20 * time.Millisecond) {
		if r.ctx.Err() != nil {
			r.Fatal(context.Cause(r.ctx))
		}
		if time.Since(begun) > patience {
			r.Fatalf("it has not come to that: %s", what)
		}
	}
}

// show prints the result of a query.
func (r *runner) show(db *pgx.Conn, query string) {
	rows, err := db.Query(r.ctx, query)
	if err != nil {
		r.Fatal(err)
	}
	defer rows.Close()
	r.printf("%s", query)
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			r.Fatal(err)
		}
		r.printf("    %v", values)
	}
	if err := rows.Err(); err != nil {
		r.Fatal(err)
	}
}
