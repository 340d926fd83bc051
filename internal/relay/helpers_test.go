package relay_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

// These tests wait for servers and timers far more than they work, so more of them run at once than there
// are processors.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(victimDSN); dsn != "" {
		victim(dsn)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// kept is a subscriber that keeps the events of its attempts, with their positions.
type kept struct {
	*subscribertest.Fake
	mu       sync.Mutex
	attempts []*event.Event // guarded by mu
}

// keeping handles as told; nil takes everything.
func keeping(handle func(context.Context, subscriber.Delivery) error) *kept {
	k := &kept{}
	k.Fake = subscribertest.Handling("keeping", func(ctx context.Context, d subscriber.Delivery) error {
		k.mu.Lock()
		k.attempts = append(k.attempts, d.Event)
		k.mu.Unlock()
		if handle == nil {
			return nil
		}
		return handle(ctx, d)
	})
	return k
}

func (k *kept) events() []*event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.attempts)
}

// await waits for an attempt of the event.
func (k *kept) await(t *testing.T, id string) *event.Event {
	t.Helper()
	var found *event.Event
	eventually(t, "an attempt of "+id, func() bool {
		for _, ev := range k.events() {
			if ev.ID == id {
				found = ev
			}
		}
		return found != nil
	})
	return found
}

var errAway = errors.New("the receiver is away")

// away fails always.
func away(context.Context, subscriber.Delivery) error { return errAway }

// blockingOne blocks the event of one id until the attempt ends or release is called, and takes the rest.
func blockingOne(id string) (handle func(context.Context, subscriber.Delivery) error, release func()) {
	released := make(chan struct{})
	return func(ctx context.Context, d subscriber.Delivery) error {
		if d.ID != id {
			return nil
		}
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, sync.OnceFunc(func() { close(released) })
}

// streaming starts a relay and waits until it streams from a slot that is known to be made: one whose
// creation was not recorded yet would be made again after a restart.
func streaming(t *testing.T, o relay.Options) *running {
	t.Helper()
	r := start(t, o)
	r.awaitStreaming()
	eventually(t, "the slot is recorded as ready", func() bool {
		var ready bool
		err := o.Pool.QueryRow(t.Context(), `SELECT state = 'ready' FROM walpost.slots WHERE slot = $1`, o.Slot).Scan(&ready)
		return err == nil && ready
	})
	return r
}

func (r *running) awaitStreaming() {
	r.t.Helper()
	eventually(r.t, "the relay streams", func() bool {
		select {
		case err := <-r.ended:
			r.ended <- err
			r.t.Fatalf("relay ended with %v", err)
		default:
		}
		return r.Health().State == relay.Streaming
	})
}

// refused waits for the end of a relay that a person has to help, and returns why.
func (r *running) refused() *wal.SetupError {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		var setup *wal.SetupError
		if !errors.As(err, &setup) {
			r.t.Fatalf("relay ended with %v, want a SetupError", err)
		}
		return setup
	case <-time.After(30 * time.Second):
		r.t.Fatalf("the relay did not stop; health: %+v", r.Health())
		return nil
	}
}

// A line is the network between one relay and its server. For the server, cutting it is what kill -9 of
// the relay is: nothing more is asked, recorded or confirmed.
type line struct {
	listener        net.Listener
	network, server string

	mu    sync.Mutex
	cut   bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
	holes chan struct{}         // closed when what is open now swallows everything; guarded by mu
}

// newLine returns a line to the database and the connection string that leads through it.
func newLine(t *testing.T, dsn string) (*line, string) {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{conns: make(map[net.Conn]struct{}), holes: make(chan struct{})}
	l.network, l.server = pgconn.NetworkAddress(config.Host, config.Port)
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.end)
	go l.serve()
	return l, withHost(t, dsn, l.listener.Addr().String())
}

func (l *line) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(l.network, l.server)
		if err != nil || !l.track(client, server) {
			client.Close()
			continue
		}
		l.mu.Lock()
		hole := l.holes
		l.mu.Unlock()
		forward := func(to, from net.Conn) {
			_, _ = io.Copy(swallowing{to, hole}, from)
			select {
			case <-hole: // the other end does not hear of it
				return
			default:
			}
			to.Close()
			from.Close()
		}
		go forward(server, client)
		go forward(client, server)
	}
}

func (l *line) track(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if l.cut {
			c.Close()
			continue
		}
		l.conns[c] = struct{}{}
	}
	return !l.cut
}

// swallow lets nothing through any more on the connections that are open; neither end hears of it. New ones
// work.
func (l *line) swallow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.holes)
	l.holes = make(chan struct{})
}

// deafen lets nothing through any more, on new connections neither, until restart.
func (l *line) deafen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.holes)
}

// restart ends every connection; new ones work again.
func (l *line) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
	l.holes = make(chan struct{})
}

// swallowing is one direction of a connection.
type swallowing struct {
	net.Conn
	hole <-chan struct{}
}

func (s swallowing) Write(p []byte) (int, error) {
	select {
	case <-s.hole:
		return len(p), nil
	default:
		return s.Conn.Write(p)
	}
}

// ReadFrom hides that of net.TCPConn, with which io.Copy would go past Write.
func (s swallowing) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{s}, r)
}

// end cuts every connection and lets no other through.
func (l *line) end() {
	l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		c.Close()
	}
}

// withHost returns dsn with another address.
func withHost(t *testing.T, dsn, address string) string {
	t.Helper()
	if !strings.Contains(dsn, "://") {
		host, port, _ := net.SplitHostPort(address)
		return dsn + " host=" + host + " port=" + port // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = address
	return u.String()
}

// startMortal starts a relay that can be killed, and waits until it streams.
func startMortal(t *testing.T, db *testdb.DB, o relay.Options) (r *running, kill func()) {
	t.Helper()
	line, dsn := newLine(t, db.DSN)
	o.Pool, o.ReplicationURL = openPool(t, dsn, 4), dsn
	o.Drain = 50 * time.Millisecond // the dead deliver nothing
	r = streaming(t, o)
	return r, func() {
		t.Helper()
		line.end()
		r.stop()
		eventually(t, "the server has noticed the death", func() bool {
			return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, o.Slot) == 0
		})
	}
}

func openPool(t *testing.T, dsn string, sessions int32) *postgres.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), fmt.Sprintf("%s&pool_max_conns=%d", dsn, sessions), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// role makes a role with the given attributes and returns a connection string for it.
func role(t *testing.T, db *testdb.DB, attributes string) (name, dsn string) {
	t.Helper()
	name = db.Name + "_role"
	db.Exec(`CREATE ROLE ` + name + ` PASSWORD 'secret' ` + attributes)
	t.Cleanup(func() {
		db.Exec(`REASSIGN OWNED BY ` + name + ` TO CURRENT_USER`)
		db.Exec(`DROP OWNED BY ` + name)
		db.Exec(`DROP ROLE ` + name)
	})
	if !strings.Contains(db.DSN, "://") {
		return name, db.DSN + " user=" + name + " password=secret"
	}
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// confirmed is where the slot stands. The server sends a transaction again if and only if the start of
// its commit record is not below it.
func confirmed(t *testing.T, db *testdb.DB) event.LSN {
	t.Helper()
	return lsn(t, db.Text(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, db.Name))
}

func lsn(t *testing.T, text string) event.LSN {
	t.Helper()
	position, err := event.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	return position
}

// passed tells whether the server will not send the event's transaction again.
func passed(t *testing.T, db *testdb.DB, ev *event.Event) func() bool {
	return func() bool { return confirmed(t, db) > ev.Position.Commit }
}

// stillSent is the number of rows that the server would send to the next relay. The slot must be free.
func stillSent(db *testdb.DB) int64 {
	return db.Int(`
		SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'walpost')
		WHERE get_byte(data, 0) = ascii('I')`, db.Name)
}

// stillToCome is how many rows a subscriber would get again. The server sends whole transactions: of one in whose middle
// the relay stopped it sends all, and the relay passes over what is recorded of the subscribers' positions.
func stillToCome(db *testdb.DB) int64 {
	return db.Int(`
		WITH message AS MATERIALIZED (
			SELECT n, xid::text, data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'walpost')
			WITH ORDINALITY AS m(lsn, xid, data, n)
		), begun AS (
			SELECT xid, ('x' || encode(substring(data FROM 2 FOR 8), 'hex'))::bit(64)::bigint AS commit FROM message WHERE get_byte(data, 0) = ascii('B')
		), inserted AS (
			SELECT commit, row_number() OVER (PARTITION BY xid ORDER BY n) - 1 AS ordinal FROM message JOIN begun USING (xid) WHERE get_byte(data, 0) = ascii('I')
		)
		SELECT count(*) FROM inserted i WHERE EXISTS (
			SELECT FROM walpost.subscribers s
			WHERE s.gone_at IS NULL AND (s.secured_commit - '0/0'::pg_lsn, s.secured_ordinal) < (i.commit::numeric, i.ordinal))`, db.Name)
}

// unmarked is the number of rows that are not marked.
func unmarked(db *testdb.DB) int64 {
	return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`)
}

// junk writes WAL that is not for the relay, a megabyte and a bit for each one asked for.
func junk(db *testdb.DB, megabytes int) {
	db.Exec(`CREATE TABLE IF NOT EXISTS junk (x text)`)
	db.Exec(`INSERT INTO junk SELECT repeat(md5(g::text), 30) FROM generate_series(1, $1) g`, 1000*megabytes)
}

// sample is one series, its labels written name=value and joined by a comma.
type sample struct {
	name, labels string
}

// series reads every counter, gauge and number of observations that a relay shows.
func series(t *testing.T, o relay.Options) map[sample]float64 {
	t.Helper()
	families, err := o.Registry.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[sample]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			s := sample{family.GetName(), strings.Join(labels, ",")}
			switch {
			case m.GetCounter() != nil:
				values[s] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				values[s] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				values[s] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// metric is one value; a series that is not there fails the test.
func metric(t *testing.T, o relay.Options, name, labels string) float64 {
	t.Helper()
	value, ok := series(t, o)[sample{name, labels}]
	if !ok {
		t.Fatalf("there is no series %s{%s}", name, labels)
	}
	return value
}

// oneSource replaces the sources by one on a table of the test's own.
func oneSource(o relay.Options, source *outbox.Source) relay.Options {
	o.Sources = []*outbox.Source{source}
	return o
}

// session is a connection for a transaction that stays open, or that replication needs.
func session(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// numbered is a list of event ids.
func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return ids
}

func insertAll(db *testdb.DB, key string, ids []string) {
	for _, id := range ids {
		insert(db, id, key)
	}
}
