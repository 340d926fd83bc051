// Package wal holds the replication connection: the publication, the slot, the stream of messages and
// the status updates that let Postgres forget. It reads and confirms; it does not know what an event is.
// The bytes it reads go to a Receiver (package dispatch, which decodes them with package pgoutput); the
// LSN it confirms comes from a Confirmer (package relay, fed by package ack).
package wal

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// SetupError is a condition that no retry repairs: a person has to do what Fix says.
type SetupError struct {
	Problem string
	Fix     string
	Err     error // the server's error, if there was one
}

func (e *SetupError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s; to fix it: %s", e.Problem, e.Fix)
	}
	return fmt.Sprintf("%s (%v); to fix it: %s", e.Problem, e.Err, e.Fix)
}

func (e *SetupError) Unwrap() error { return e.Err }

// ErrSlotInUse means that another session reads the slot, or is making or repairing it. It is free again when
// that session ends, or at the latest after its wal_sender_timeout or, when its network is cut before it reads,
// its TCP keepalives.
var ErrSlotInUse = errors.New("another session has the slot")

// System identifies a server and its history.
type System struct {
	ID       string // differs between clusters that were not copied from each other
	Timeline int32  // grows with each promotion
}

// Conn is a replication connection. It belongs to one goroutine.
//
// Commands go through the driver. With Start the driver is out of it: the loop of Stream reads, cuts what came into
// messages and sends the status by itself, and no goroutine of the driver can touch the connection any more.
type Conn struct {
	pg       *pgconn.PgConn // until Start
	stream   *pgconn.HijackedConn
	dsn      string
	socket   *socket        // below TLS
	messages *messageReader // above it; the driver reads from it, too
	skipped  *pgconn.Notice // Postgres 18 went on without the publication
}

// Connect opens a replication connection, with the session settings of postgres.ReplicationConfig.
// application is what pg_stat_replication shows.
func Connect(ctx context.Context, dsn, application string) (*Conn, error) {
	config, err := postgres.ReplicationConfig(dsn)
	if err != nil {
		return nil, err
	}
	c := &Conn{dsn: dsn}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &socket{Conn: conn}, nil
	}
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		c.messages = &messageReader{source: r}
		return pgproto3.NewFrontend(c.messages, w)
	}
	config.RuntimeParams["application_name"] = application
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { c.noteNotice(n) }
	c.pg, err = pgconn.ConnectConfig(ctx, config)
	if err != nil {
		err = postgres.ConnectError(err, dsn)
		if strings.Contains(err.Error(), "unsupported startup parameter") {
			return nil, &SetupError{Err: err,
				Problem: "the replication connection goes through a pooler",
				Fix:     "set replication_url (WALPOST_REPLICATION_URL) to a direct connection; database_url may stay as it is"}
		}
		if postgres.Code(err) == "42501" { // insufficient_privilege
			return nil, &SetupError{Err: err,
				Problem: fmt.Sprintf("role %q may not use replication", config.User),
				Fix:     fmt.Sprintf("as a superuser: %s; at a managed service, give it the replication role of the service", advice.AllowReplication(config.User))}
		}
		return nil, err
	}
	switch conn := c.pg.Conn().(type) {
	case *socket:
		c.socket = conn
	case *tls.Conn:
		c.socket = conn.NetConn().(*socket)
	default:
		panic(fmt.Sprintf("wal: the driver made a connection of type %T", conn))
	}
	return c, nil
}

// noteNotice looks for the words "skipped loading publication": its rows are missing from the stream from here on.
func (c *Conn) noteNotice(n *pgconn.Notice) {
	if n.Code == "55000" && strings.Contains(n.Message, "publication") {
		c.skipped = n
	}
}

// Close ends the connection without waiting for anything.
func (c *Conn) Close() {
	const patience = time.Second
	if c.stream == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = c.pg.Close(ctx)
		return
	}
	_ = c.stream.Conn.SetDeadline(time.Now().Add(patience))
	c.stream.Frontend.Send(&pgproto3.Terminate{})
	_ = c.stream.Frontend.Flush() // the server notices the end of a connection that is broken, too
	_ = c.stream.Conn.Close()
}

// Version is the major version of the server.
func (c *Conn) Version() int {
	digits := c.pg.ParameterStatus("server_version")
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	major, _ := strconv.Atoi(digits)
	return major
}

// Identify asks which server this is. Right after a promotion this is the only place that already knows
// the new timeline. (PostgreSQL manual, "Streaming Replication Protocol", IDENTIFY_SYSTEM)
func (c *Conn) Identify(ctx context.Context) (System, error) {
	system, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return System{}, fmt.Errorf("identify system: %w", postgres.Mask(err, c.dsn))
	}
	return System{ID: system.SystemID, Timeline: system.Timeline}, nil
}

// Pooled reports whether a pooler stands between us and the server: it gives out keys for cancelling of its
// own, so the process id in ours is not that of the session that answers. It is for a connection that
// does not stream yet.
func (c *Conn) Pooled(ctx context.Context) (bool, error) {
	results, err := c.pg.Exec(ctx, "SELECT pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil {
		return false, fmt.Errorf("ask which process serves the connection: %w", postgres.Mask(err, c.dsn))
	}
	return string(results[0].Rows[0][0]) != strconv.FormatUint(uint64(c.pg.PID()), 10), nil
}

// CreatedSlot is where a new slot begins. The snapshot shows exactly what committed before that point,
// until the next command on the connection.
type CreatedSlot struct {
	ConsistentPoint event.LSN
	Snapshot        string
}

// CreateSlot makes a permanent slot of pgoutput and exports the snapshot that goes with it. It waits for
// all transactions that are running, so it can take as long as the oldest of them. When ctx ends, pgconn cancels
// the command on the server, and when the process ends the server notices: no slot stays behind that waits for
// no one.
func (c *Conn) CreateSlot(ctx context.Context, name string) (CreatedSlot, error) {
	options := "(SNAPSHOT 'export', FAILOVER true)"
	switch version := c.Version(); {
	case version < 15:
		options = "EXPORT_SNAPSHOT"
	case version < 17:
		options = "(SNAPSHOT 'export')"
	}
	c.noticeOurEnd(ctx)
	sql := "CREATE_REPLICATION_SLOT " + advice.Quote(name) + " LOGICAL pgoutput " + options
	created, err := pglogrepl.ParseCreateReplicationSlot(c.pg.Exec(ctx, sql))
	if err != nil {
		return CreatedSlot{}, explainSlotError(name, fmt.Errorf("create replication slot %q: %w", name, err))
	}
	point, err := event.ParseLSN(created.ConsistentPoint)
	if err != nil {
		return CreatedSlot{}, fmt.Errorf("create replication slot %q: consistent point: %w", name, err)
	}
	return CreatedSlot{ConsistentPoint: point, Snapshot: created.SnapshotName}, nil
}

// Start takes the slot: from now on no one else can read it. It returns ErrSlotInUse while someone else
// does. The position is always 0/0, "where the slot stands": a higher one of our own
// would make the server skip what lies between without a word.
func (c *Conn) Start(ctx context.Context, slot, publication string) error {
	err := pglogrepl.StartReplication(ctx, c.pg, advice.Quote(slot), 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + literal(advice.Quote(publication)),
			"messages 'true'",
		},
	})
	if err != nil {
		if ctx.Err() != nil { // a stop that came before the first byte is no fault of the slot's
			return fmt.Errorf("%w: %w", ErrConnection, err)
		}
		return explainSlotError(slot, fmt.Errorf("start replication on slot %q: %w", slot, postgres.Mask(err, c.dsn)))
	}
	if c.stream, err = c.pg.Hijack(); err != nil {
		return fmt.Errorf("start replication on slot %q: %w", slot, err)
	}
	c.socket.streaming = c.overTLS()
	return nil
}

func (c *Conn) overTLS() bool { return c.stream.Conn != net.Conn(c.socket) }

// receive waits for what the server sends next, with one read from the kernel, and appends it to the messages. It returns
// how many bytes that were, and whether there was room for no more.
func (c *Conn) receive() (n int, full bool, err error) {
	if !c.overTLS() {
		return c.messages.fill()
	}
	if n, full, err = c.socket.fill(); n == 0 {
		return 0, false, err
	}
	for err == nil {
		_, _, err = c.messages.fill()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // TLS has taken all of it
		err = nil
	}
	return n, full, err
}

// explainSlotError adds what to do to the errors that a person has to fix.
func explainSlotError(slot string, err error) error {
	switch postgres.Code(err) {
	case "55006": // object_in_use
		return fmt.Errorf("%w: %w", ErrSlotInUse, err)
	case "53400": // configuration_limit_exceeded
		return &SetupError{Err: err,
			Problem: "all replication slots of the server are in use",
			Fix:     "drop one that no one needs (SELECT slot_name, active, restart_lsn FROM pg_replication_slots), or raise max_replication_slots and restart the server"}
	case "42501": // insufficient_privilege
		return &SetupError{Err: err,
			Problem: "the role may not use replication",
			Fix:     "let a superuser give it REPLICATION, or give it the replication role of the managed service"}
	case "42704": // undefined_object: the slot was dropped, or the publication is younger than the slot
		return fmt.Errorf("%w: %w", ErrMissing, err)
	case "55000": // object_not_in_prerequisite_state
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return err
}

// ErrMissing means that the slot is gone, or that the publication did not exist at this point of the WAL: then
// the slot brings nothing from here on, whatever is made now.
var ErrMissing = errors.New("the slot or the publication does not exist at this point of the WAL")

// ErrUnreadable means that the slot is there and cannot be read any more. Slot.Lost says so if it is lost.
var ErrUnreadable = errors.New("the slot cannot be read any more")

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
