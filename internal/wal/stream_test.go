package wal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

// receiver counts what it is given.
type receiver struct {
	full     atomic.Bool
	room     chan struct{}
	messages atomic.Int64
	inserts  atomic.Int64
	largest  atomic.Int64 // bytes of a message
	walEnd   atomic.Uint64
}

func newReceiver() *receiver { return &receiver{room: make(chan struct{}, 1)} }

func (r *receiver) Receive(message []byte) error {
	r.messages.Add(1)
	r.largest.Store(max(r.largest.Load(), int64(len(message))))
	if message[0] == 'I' {
		r.inserts.Add(1)
	}
	return nil
}
func (r *receiver) KeepAlive(walEnd event.LSN) { r.walEnd.Store(uint64(walEnd)) }
func (r *receiver) HandOver()                  {}
func (r *receiver) HasRoom() bool              { return !r.full.Load() }
func (r *receiver) Room() <-chan struct{}      { return r.room }

// confirmer says what it is told to say.
type confirmer struct{ lsn atomic.Uint64 }

func (c *confirmer) Confirmed() event.LSN { return event.LSN(c.lsn.Load()) }
func (c *confirmer) Pending() bool        { return true }

func connect(t *testing.T, db *testdb.DB) *wal.Conn {
	t.Helper()
	conn, err := wal.Connect(t.Context(), db.DSN, "walpost/test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// reading is a stream under test.
type reading struct {
	*receiver
	*confirmer
	point   event.LSN
	stop    context.CancelFunc
	drained chan struct{}
	ended   chan error
}

// read makes publication and slot and streams over a connection of its own.
func read(t *testing.T, db *testdb.DB, full bool) *reading {
	t.Helper()
	return readOver(t, db, connect(t, db), full)
}

// readOver makes publication and slot and streams.
func readOver(t *testing.T, db *testdb.DB, conn *wal.Conn, full bool) *reading {
	t.Helper()
	if err := wal.MakePublication(t.Context(), db.Pinned, "walpost", []pgx.Identifier{{"public", "outbox"}}); err != nil {
		t.Fatal(err)
	}
	created, err := conn.CreateSlot(t.Context(), db.Name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &reading{newReceiver(), &confirmer{}, created.ConsistentPoint, stop, make(chan struct{}), make(chan error, 1)}
	r.full.Store(full)
	go func() { r.ended <- stream(ctx, conn, r.options(t, db)) }()
	eventually(t, "the stream is active", func() bool { return find(t, db, db.Name).Active })
	return r
}

// stream takes the slot and reads it.
func stream(ctx context.Context, conn *wal.Conn, o wal.StreamOptions) error {
	if err := conn.Start(ctx, o.Slot, o.Publication); err != nil {
		return err
	}
	return conn.Stream(ctx, o)
}

func (r *reading) options(t *testing.T, db *testdb.DB) wal.StreamOptions {
	return wal.StreamOptions{
		Slot: db.Name, Publication: "walpost", Confirmed: r.point,
		Receiver: r.receiver, Confirmer: r.confirmer, Drained: r.drained,
		Alive:    func(context.Context, uint32) bool { return true },
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		Progress: new(wal.Progress),
	}
}

func (r *reading) end(t *testing.T) {
	t.Helper()
	r.stop()
	close(r.drained)
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("stream ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the stream did not end")
	}
}

func insert(db *testdb.DB, id string) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ($1, 'any', '{}')`, id)
}

// gathering is a receiver that fails the test when something counts as handed over before HandOver.
type gathering struct {
	*receiver
	t        *testing.T
	progress *wal.Progress
	gathered int
	handed   event.LSN // when the first of them came
}

func (g *gathering) Receive(message []byte) error {
	if g.gathered++; g.gathered == 1 {
		g.handed = g.progress.HandedOver()
	}
	if got := g.progress.HandedOver(); got != g.handed {
		g.t.Errorf("%v counts as handed over with %d messages still gathered since %v", got, g.gathered, g.handed)
	}
	return g.receiver.Receive(message)
}

func (g *gathering) HandOver() {
	if got := g.progress.HandedOver(); g.gathered > 0 && got != g.handed {
		g.t.Errorf("%v counts as handed over before %d messages since %v are", got, g.gathered, g.handed)
	}
	g.gathered = 0
}

// Lanes take what comes after a position for new: what was gathered before it must have come to them by then.
func TestStream_saysThatItHasHandedOverOnlyThen(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if err := wal.MakePublication(t.Context(), db.Pinned, "walpost", []pgx.Identifier{{"public", "outbox"}}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, db)
	created, err := conn.CreateSlot(t.Context(), db.Name)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 5000
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT n, 'any', '{}' FROM generate_series(1, $1::int) n`, rows)
	end := db.Text(`SELECT pg_current_wal_insert_lsn()::text`)
	ctx, stop := context.WithCancel(t.Context())
	r := &reading{newReceiver(), &confirmer{}, created.ConsistentPoint, stop, make(chan struct{}), make(chan error, 1)}
	o := r.options(t, db)
	o.Receiver = &gathering{receiver: r.receiver, t: t, progress: o.Progress}
	go func() { r.ended <- stream(ctx, conn, o) }()
	eventually(t, "everything is handed over", func() bool {
		want, err := event.ParseLSN(end)
		return err == nil && r.inserts.Load() == rows && o.Progress.HandedOver() >= want
	})
	r.end(t)
}

// transports are the ways to a server.
func transports(server *pgserver.Server, database string) map[string]string {
	return map[string]string{"TCP": server.DSN(database), "TLS": server.TLSDSN(database), "Unix socket": server.SocketDSN(database)}
}

// Over any connection all of a stream comes, whatever the size of its messages, and the end is a clean one.
func TestStream_readsOverAnyConnection(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"ssl": "on"})
	for transport := range transports(server, "") {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, server)
			conn, err := wal.Connect(t.Context(), transports(server, db.Name)[transport], "walpost/test")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
			r := readOver(t, db, conn, false)
			const rows, large = 20_000, 6 << 20
			db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT n, 'any', '{}' FROM generate_series(1, $1::int) n`, rows)
			db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('large', 'any', to_jsonb(repeat('x', $1::int)))`, large)
			db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT 'b' || n, 'any', to_jsonb(repeat('x', n * 700)) FROM generate_series(1, 300) n`)
			insert(db, "last")
			eventually(t, "all rows", func() bool { return r.inserts.Load() == rows+1+300+1 })
			if got := r.largest.Load(); got < large {
				t.Errorf("the largest message has %d bytes, want %d at least", got, large)
			}
			end, err := event.ParseLSN(db.Text(`SELECT pg_current_wal_flush_lsn()::text`))
			if err != nil {
				t.Fatal(err)
			}
			r.lsn.Store(uint64(end))
			r.end(t)
			if got := find(t, db, db.Name).Confirmed; got != end {
				t.Errorf("the slot stands at %v when the stream has ended, want %v", got, end)
			}
		})
	}
}

// owned is a receiver that belongs to the goroutine of Stream: the race detector, and the flag, tell if another calls it.
type owned struct {
	*receiver
	t      *testing.T
	inside atomic.Bool // Stream has begun and not returned
	calls  int
}

func (o *owned) called() {
	o.calls++
	if !o.inside.Load() {
		o.t.Error("the receiver is called although Stream has returned")
	}
}

func (o *owned) Receive(message []byte) error {
	o.called()
	return o.receiver.Receive(message)
}

func (o *owned) HandOver() { o.called() }

// cutting returns the DSN of a way to a database on which the first connection breaks off after so many bytes from the
// server.
func cutting(t *testing.T, db *testdb.DB, after int64) string {
	t.Helper()
	config, err := pgconn.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for limit := after; ; limit = math.MaxInt64 {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				client.Close()
				return
			}
			go func() { _, _ = io.Copy(server, client) }()
			go func() {
				_, _ = io.CopyN(client, server, limit)
				client.Close()
				server.Close()
			}()
		}
	}()
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=%s sslmode=disable",
		listener.Addr().(*net.TCPAddr).Port, config.User, config.Password, config.Database)
}

// S-109: a connection that breaks while much is under way hands nothing over next to the stream of the next one.
func TestStream_aBrokenConnectionHandsNothingOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if err := wal.MakePublication(t.Context(), db.Pinned, "walpost", []pgx.Identifier{{"public", "outbox"}}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, db)
	created, err := conn.CreateSlot(t.Context(), db.Name)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT n, 'any', '{}' FROM generate_series(1, 20000) n`)
	for round := range 10 {
		one := &owned{receiver: newReceiver(), t: t}
		r := &reading{one.receiver, &confirmer{}, created.ConsistentPoint, func() {}, nil, nil}
		o := r.options(t, db)
		o.Receiver = one
		conn, err := wal.Connect(t.Context(), cutting(t, db, int64(100_000+round)), "walpost/test")
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the slot is free", func() bool { return !find(t, db, db.Name).Active })
		if err := conn.Start(t.Context(), o.Slot, o.Publication); err != nil {
			t.Fatal(err)
		}
		one.inside.Store(true)
		err = conn.Stream(t.Context(), o)
		one.inside.Store(false)
		one.calls++ // no lock: no one else may call it
		if !errors.Is(err, wal.ErrConnection) || one.inserts.Load() == 0 {
			t.Errorf("after %d rows: got %v, want rows and ErrConnection", one.inserts.Load(), err)
		}
		conn.Close()
	}
}

// positions are those of the last status: write, flush and apply.
func positions(db *testdb.DB) string {
	return db.Text(`SELECT coalesce(max(concat_ws(' ', r.write_lsn, r.flush_lsn, r.replay_lsn)), '')
		FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, db.Name)
}

// F-02, F-23: all three positions are set, never below the slot's, and they follow the confirmer alone.
func TestStream_tellsOnePositionThreeTimes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false) // its confirmer still says 0/0
	insert(db, "e")
	start := r.point.String()
	eventually(t, "the first status", func() bool { return positions(db) != "" })
	if got, want := positions(db), start+" "+start+" "+start; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	end := db.Text(`SELECT pg_current_wal_flush_lsn()::text`)
	lsn, err := event.ParseLSN(end)
	if err != nil {
		t.Fatal(err)
	}
	r.lsn.Store(uint64(lsn))
	eventually(t, "a status that follows", func() bool { return positions(db) == end+" "+end+" "+end })
	r.lsn.Store(uint64(r.point)) // a confirmer must not do this; the stream does not pass it on
	insert(db, "later")
	eventually(t, "the later row", func() bool { return r.inserts.Load() == 2 })
	r.end(t)
	if got := find(t, db, db.Name).Confirmed; got != lsn {
		t.Errorf("the slot stands at %v, want %v", got, lsn)
	}
}

// F-19: a server that reads WAL that is not for us says so, because it is asked.
func TestStream_hearsOfWALThatIsNotForIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false)
	db.Exec(`CREATE TABLE junk AS SELECT repeat('x', 100) FROM generate_series(1, 10000)`)
	end, err := event.ParseLSN(db.Text(`SELECT pg_current_wal_flush_lsn()::text`))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a keepalive beyond it", func() bool { return event.LSN(r.walEnd.Load()) >= end })
	r.end(t)
}

// A full window stops the reading and not the status.
func TestStream_readsNothingWithoutRoomAndKeepsTheConnectionAlive(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, true)
	insert(db, "e")
	replies := func() string {
		return db.Text(`SELECT coalesce(max(r.reply_time)::text, '') FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, db.Name)
	}
	before := replies()
	eventually(t, "a status", func() bool { return replies() != before })
	if got := r.messages.Load(); got != 0 {
		t.Errorf("%d messages were read without room", got)
	}
	r.full.Store(false)
	r.room <- struct{}{}
	eventually(t, "the row", func() bool { return r.inserts.Load() == 1 })
	r.end(t)
}

// F-43: what is confirmed between the soft stop and the end of the drain is told.
func TestStream_tellsTheLastPositionBeforeItEnds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false)
	insert(db, "e")
	eventually(t, "the row", func() bool { return r.inserts.Load() == 1 })
	end, err := event.ParseLSN(db.Text(`SELECT pg_current_wal_flush_lsn()::text`))
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.lsn.Store(uint64(end))
	r.end(t)
	if got := find(t, db, db.Name).Confirmed; got != end {
		t.Errorf("the slot stands at %v when the stream has ended, want %v", got, end)
	}
}

func TestStream_saysThatAnotherSessionReadsTheSlot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false)
	insert(db, "e")
	eventually(t, "the row", func() bool { return r.inserts.Load() == 1 })
	if err := stream(t.Context(), connect(t, db), r.options(t, db)); !errors.Is(err, wal.ErrSlotInUse) {
		t.Errorf("second reader got %v, want ErrSlotInUse", err)
	}
	r.end(t)
}

func TestStream_calledOffBeforeItBeginsIsNoFault(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false)
	insert(db, "e")
	eventually(t, "the row", func() bool { return r.inserts.Load() == 1 })
	r.end(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := stream(ctx, connect(t, db), r.options(t, db)); err != nil && !errors.Is(err, wal.ErrConnection) {
		t.Errorf("got %v, want nil or ErrConnection", err)
	}
}

// A session that is ended, or a server that crashes, is a lost connection and no riddle.
func TestStream_tellsALostConnectionFromAFault(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := read(t, db, false)
	db.Exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
	if err := <-r.ended; !errors.Is(err, wal.ErrConnection) {
		t.Errorf("got %v, want ErrConnection", err)
	}
}

func TestConnect_saysWhichRightIsMissing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	role := db.Name + "_role"
	db.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { db.Exec(`DROP ROLE ` + role) })
	dsn := db.DSN + " user=" + role + " password=secret"
	if u, err := url.Parse(db.DSN); err == nil && u.Scheme != "" {
		u.User = url.UserPassword(role, "secret")
		dsn = u.String()
	}
	_, err := wal.Connect(t.Context(), dsn, "walpost/test")
	wantSetup(t, err, `ALTER ROLE "`+role+`" REPLICATION`)
}

func TestConn_knowsItsServer(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := connect(t, db)
	if got, want := int64(conn.Version()), db.Int(`SELECT current_setting('server_version_num')::int / 10000`); got != want {
		t.Errorf("version %d, want %d", got, want)
	}
	system, err := conn.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := db.Text(`SELECT system_identifier::text FROM pg_control_system()`); system.ID != want || system.Timeline != 1 {
		t.Errorf("system %+v, want id %s, timeline 1", system, want)
	}
}
