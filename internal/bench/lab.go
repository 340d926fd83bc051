package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/migrations"
)

// lab is the database that a run works in, and what it has found there. One goroutine uses it.
type lab struct {
	Options
	dsn     string
	via     string           // the way of what is measured: dsn, or another transport to the same database
	pool    *pgxpool.Pool    // for what is measured, and for measuring
	pinned  *postgres.Pool   // for what is walpost's own
	server  *pgserver.Server // the private one
	base    string           // slot whose copies are read: all begin where it stands
	dir     string           // for configuration files
	leave   func() error
	current string // case
	report  *Report
	peaks   []peak
	slots   int // copies made so far

	profiles int // asked for so far

	done, total int // steps
}

// settings of a private server. Nothing is synced to disk, so that the disk, which is the same for
// everyone, does not hide who does more work; autovacuum and checkpoints would come when they like.
var settings = map[string]string{
	"fsync":                 "off",
	"full_page_writes":      "off",
	"max_wal_size":          "16GB",
	"checkpoint_timeout":    "1h",
	"autovacuum":            "off",
	"shared_buffers":        "512MB",
	"max_connections":       "100",
	"max_replication_slots": "20",
	"max_wal_senders":       "20",
	"ssl":                   "on", // for those who ask for it
}

// openLab makes the database with the reference service's tables, the publication and the base slot.
func openLab(ctx context.Context, o Options, total int) (_ *lab, err error) {
	l := &lab{Options: o, total: total, base: "walpost_bench"}
	if o.DatabaseURL == "" {
		err = l.privateServer(ctx)
	} else {
		err = l.ownDatabase(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	l.via = l.dsn
	if err := migrations.Up(ctx, l.dsn, o.Log, migrations.Walpost, migrations.Lessons); err != nil {
		return nil, err
	}
	if l.pool, err = pgxpool.New(ctx, l.dsn); err != nil {
		return nil, postgres.ConnectError(err, l.dsn)
	}
	if l.pinned, err = postgres.Open(ctx, l.dsn, "walpost/bench"); err != nil {
		return nil, err
	}
	var version string
	if err := l.pool.QueryRow(ctx, `SHOW server_version`).Scan(&version); err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	l.report = l.newReport(version)
	// A first start leaves the publication, and in walpost.slots what belongs to a slot.
	relay, err := l.startRelay(ctx, l.base, 0, flow{subscribers: []string{"{name: first, kind: bench-noop}"}}, nil)
	if err != nil {
		return nil, err
	}
	_, err = relay.says(ctx, `"msg":"streaming"`)
	relay.stop()
	return l, err
}

func (l *lab) privateServer(ctx context.Context) error {
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: settings, Log: l.Log})
	if errors.Is(err, pgserver.ErrNotFound) {
		return fmt.Errorf("%w: install a Postgres server (Debian, Ubuntu: postgresql), or name one with --database-url", err)
	}
	if err != nil {
		return err
	}
	l.dsn, l.dir, l.server = server.DSN("postgres"), server.Dir(), server
	l.leave = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		return server.Stop(ctx)
	}
	return nil
}

// transport is the DSN of a way to the server.
func (l *lab) transport(name string) (string, error) {
	switch {
	case name == "":
		return l.dsn, nil
	case l.server == nil:
		return "", errors.New("transport: the URL of the server decides")
	case name == "tls":
		return l.server.TLSDSN("postgres"), nil
	case name == "unix":
		if dsn := l.server.SocketDSN("postgres"); dsn != "" {
			return dsn, nil
		}
		return "", fmt.Errorf("transport unix: the path of %s is too long for a socket; set TMPDIR to a shorter one", l.server.Dir())
	}
	return l.dsn, nil
}

// ownDatabase makes a database on a server that someone else runs. A process that outlives us removes it,
// when its standard input ends: at the end of the run, or when we are killed.
func (l *lab) ownDatabase(ctx context.Context) (err error) {
	target, err := url.Parse(l.DatabaseURL)
	if err != nil || !strings.HasPrefix(target.Scheme, "postgres") {
		return errors.New("--database-url: give it as postgres://user:password@host:5432/database")
	}
	if l.dir, err = os.MkdirTemp("", "walpost-bench-"); err != nil {
		return fmt.Errorf("folder for configurations: %w", err)
	}
	name := l.base + "_" + strings.ToLower(rand.Text()[:10])
	l.base = name // names of slots are unique per server, and two may measure there
	cleaner := exec.Command(l.Program, "bench-part", "clean", "--database="+name, "--folder="+l.dir)
	cleaner.Env = append(os.Environ(), "WALPOST_BENCH_DATABASE_URL="+l.DatabaseURL)
	cleaner.Dir = "/"
	cleaner.Stderr = os.Stderr
	cleaner.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cleaner.StdinPipe()
	if err == nil {
		err = cleaner.Start()
	}
	if err != nil {
		return fmt.Errorf("start the process that cleans up: %w", err)
	}
	l.leave = func() error {
		_ = stdin.Close()
		if err := cleaner.Wait(); err != nil {
			return fmt.Errorf("clean up database %s and its slots: %w", name, err)
		}
		return nil
	}
	conn, err := pgx.Connect(ctx, l.DatabaseURL)
	if err != nil {
		return errors.Join(postgres.ConnectError(err, l.DatabaseURL), l.leave())
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return errors.Join(fmt.Errorf("make a database to work in: %w", err), l.leave())
	}
	target.Path = "/" + name
	l.dsn = target.String()
	return nil
}

// Clean waits until in ends and then removes a database with its slots, and a folder.
func Clean(in io.Reader, databaseURL, database, folder string) error {
	_, _ = io.Copy(io.Discard, in)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := os.RemoveAll(folder)
	conn, connErr := pgx.Connect(ctx, databaseURL)
	if connErr != nil {
		return errors.Join(err, postgres.ConnectError(connErr, databaseURL))
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`,
		// A walsender that was just told to end may still hold its slot.
		`SELECT pg_sleep(0.2) FROM pg_replication_slots WHERE database = $1 AND active`,
		`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`,
	} {
		_, execErr := conn.Exec(ctx, sql, database)
		err = errors.Join(err, execErr)
	}
	_, execErr := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{database}.Sanitize())
	return errors.Join(err, execErr)
}

func (l *lab) close() error {
	if l.pool != nil {
		l.pool.Close()
	}
	return l.leave()
}

// exec runs statements that return nothing of interest.
func (l *lab) exec(ctx context.Context, sql string, args ...any) error {
	if _, err := l.pool.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql)[:2], " "), err)
	}
	return nil
}

func (l *lab) query(ctx context.Context, sql string, args ...any) (n int64, err error) {
	if err := l.pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql)[:2], " "), err)
	}
	return n, nil
}

// rows is SQL for the events of lessons that a thousand learners complete. The payload is filled up to the size that was asked
// for; the rest takes about 223 bytes.
func rows(payload int, from, to string) string {
	return strings.NewReplacer("$payload", strconv.Itoa(payload), "$from", from, "$to", to).Replace(`
	INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload)
	SELECT 'bench-' || n, 'lesson.completed', 'lesson', (n / 1000)::text, (n % 1000)::text,
	       jsonb_build_object('event_id', 'bench-' || n, 'type', 'lesson.completed', 'correlation_id', 'c' || n,
	           'occurred_at', '2026-01-01T00:00:00Z', 'user_id', n % 1000 + 1, 'lesson_id', n / 1000 + 1,
	           'track_slug', 'go-basics', 'lesson_slug', 'channels', 'pad', repeat('x', greatest(0, $payload - 223)))
	FROM generate_series($from, $to) AS n`)
}

// backlog empties the tables, moves the base slot to now and writes events in transactions of a shape. It
// returns the position behind them, at which a message waits for readers that stop at one.
func (l *lab) backlog(ctx context.Context, shape string, events, payload int) (end string, err error) {
	if err := l.reset(ctx); err != nil {
		return "", err
	}
	if err := l.exec(ctx, `TRUNCATE outbox`); err != nil {
		return "", err
	}
	if err := l.exec(ctx, `SELECT pg_drop_replication_slot($1)`, l.base); err != nil {
		return "", err
	}
	if err := l.exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, l.base); err != nil {
		return "", err
	}
	size := map[string]int{"1": 1, "100": 100}[shape]
	sql := rows(payload, "1", strconv.Itoa(events))
	if size != 0 {
		sql = fmt.Sprintf(`DO $do$ BEGIN
			SET synchronous_commit = off;
			FOR i IN 0 .. %d LOOP %s; COMMIT; END LOOP;
			RESET synchronous_commit;
			END $do$`, (events+size-1)/size-1,
			rows(payload, fmt.Sprintf("i * %d + 1", size), fmt.Sprintf("least((i + 1) * %d, %d)", size, events)))
	}
	if err := l.exec(ctx, sql); err != nil {
		return "", err
	}
	err = l.pool.QueryRow(ctx, `SELECT pg_logical_emit_message(false, 'bench', 'end')::text`).Scan(&end)
	if err != nil {
		return "", fmt.Errorf("write the end of the backlog: %w", err)
	}
	// A commit flushes everything before it; what is not on disk, no one is sent.
	for _, sql := range []string{`SELECT pg_logical_emit_message(true, 'bench', 'behind it')`, `ANALYZE`} {
		if err := l.exec(ctx, sql); err != nil {
			return "", err
		}
	}
	return end, nil
}

// reset undoes what deliveries have done. The marks are undone by updates, which the publication does not
// carry, so that the stream stays as it is.
func (l *lab) reset(ctx context.Context) error {
	for _, sql := range []string{
		`TRUNCATE walpost.owed, walpost.inbox, user_achievements, analytics_events, notifications, recommendations`,
		`UPDATE outbox SET published_at = NULL, attempts = 0 WHERE published_at IS NOT NULL`,
		`VACUUM outbox`,
	} {
		if err := l.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// copySlot copies the base slot, for a relay with these subscribers: a copy begins where the base stands,
// so everyone drains the same WAL.
func (l *lab) copySlot(ctx context.Context, subscribers ...string) (slot string, err error) {
	l.slots++
	slot = fmt.Sprintf("%s_%d", l.base, l.slots)
	if err := l.exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, l.base, slot); err != nil {
		return "", err
	}
	err = l.exec(ctx, `
		INSERT INTO walpost.slots (slot, system_id, timeline, epoch, fingerprint, state, confirmed)
		SELECT $2::text, system_id, timeline, epoch, fingerprint, state,
		       (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $2::text)
		FROM walpost.slots WHERE slot = $1`, l.base, slot)
	if err != nil {
		return "", err
	}
	return slot, l.exec(ctx, `
		INSERT INTO walpost.subscribers (slot, name, system_id, timeline)
		SELECT slot, name, system_id, timeline FROM walpost.slots, unnest($2::text[]) AS name WHERE slot = $1`, slot, subscribers)
}

// dropSlot removes a slot whose reader has ended, as soon as the server has noticed that.
func (l *lab) dropSlot(ctx context.Context, slot string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	for {
		active, err := l.query(ctx, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, slot)
		if err != nil {
			return err
		}
		if active == 0 {
			break
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if err := l.exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, slot); err != nil {
		return err
	}
	return l.exec(ctx, `DELETE FROM walpost.slots WHERE slot = $1`, slot)
}

// streaming waits until someone reads a slot, and returns the moment; ended is closed if no one will.
func (l *lab) streaming(ctx context.Context, slot string, ended <-chan struct{}) (time.Time, error) {
	for {
		active, err := l.query(ctx, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, slot)
		if err != nil {
			return time.Time{}, err
		}
		now := time.Now()
		if active != 0 {
			return now, nil
		}
		select {
		case <-ended:
			return now, nil // it was quick, or has failed, which its exit code says
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// flow is what the configuration of a relay says in addition to the defaults.
type flow struct {
	mark        bool
	subscribers []string // a YAML mapping each
}

// names of subscribers as a copy of a slot needs them.
func (f flow) names() []string {
	var names []string
	for _, s := range f.subscribers {
		name, _, _ := strings.Cut(strings.TrimPrefix(s, "{name: "), ",")
		names = append(names, strings.TrimSuffix(name, "}"))
	}
	return names
}

// startRelay starts a relay on a slot that tells when each subscriber has handled expect events.
func (l *lab) startRelay(ctx context.Context, slot string, expect int, f flow, partArgs []string) (*child, error) {
	mark := "off"
	if f.mark {
		mark = "auto"
	}
	text := fmt.Sprintf("sources:\n  - {name: lessons, table: public.outbox, mark: %q, rows: ours}\nsubscribers:\n", mark)
	for _, s := range f.subscribers {
		text += "  - " + s + "\n"
	}
	file := filepath.Join(l.dir, slot+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write a configuration: %w", err)
	}
	args := append([]string{"run", fmt.Sprintf("--expect=%d", expect)}, partArgs...)
	args = append(args, "--", "relay", "--config="+file, "--slot="+slot, "--publication="+l.base, "--ops-listen=127.0.0.1:0", "--log-format=json")
	return l.start(ctx, []string{"WALPOST_DATABASE_URL=" + l.via}, args...)
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
