package wal

import (
	"errors"
	"net"
	"os"
	"time"
)

const (
	// readSize is how much one read takes at most. It is more than the server sends in backlogWait.
	readSize = 256 << 10
	// backlogWait is how long the server may fill the socket before the next read, while there is a backlog.
	backlogWait = 2 * time.Millisecond
	// behind is how old a transaction is, by the server's clock, when its rows are sent, for the stream to
	// be behind: then a millisecond more does not matter to anybody.
	behind = 20 * time.Millisecond
	// busyWait is backlogWait while the stream keeps up, but brings a message every busyEvery or more: some
	// three thousand small transactions a second. It is measured over busySpan.
	busyWait  = time.Millisecond
	busyEvery = 100 * time.Microsecond
	busySpan  = 10 * time.Millisecond
)

// coalescedConn takes several messages with one read while the stream is behind or busy, and at once while it is neither.
//
// The server sends every message by itself. A reader that takes each as it comes is woken once per row,
// and so are the kernel and the server; one that lets a millisecond of them gather is woken a thousand
// times a second at most, which leaves the cores to those who produce and handle events.
//
// It belongs to the goroutine that reads, until a read fails: then the driver reads on in a goroutine of its own, to close
// the connection, and nothing is gathered or handed over any more.
type coalescedConn struct {
	net.Conn
	buf    []byte // nil before the stream begins
	i, n   int    // what of buf is unread
	behind bool
	at     time.Time // of the last read: what is unread was there then
	since  time.Time // since when messages are counted
	count  int       // of messages since then
	busy   bool
	failed bool // a read has, and not because its time was over
	// beforeRead is called when everything that was read has been taken and more is wanted.
	beforeRead func()
}

// empty reports whether everything that was read has been taken.
func (g *coalescedConn) empty() bool { return g.i == g.n }

// Read implements net.Conn.
func (g *coalescedConn) Read(p []byte) (int, error) {
	if g.empty() {
		if g.buf == nil || g.failed {
			return g.Conn.Read(p)
		}
		if g.beforeRead != nil {
			g.beforeRead()
		}
		switch {
		case g.behind:
			g.rest(backlogWait)
		case g.busy:
			g.rest(busyWait)
		}
		n, err := g.Conn.Read(g.buf)
		g.failed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
		g.at = time.Now()
		if span := g.at.Sub(g.since); span >= busySpan {
			g.busy = time.Duration(g.count)*busyEvery >= span
			g.since, g.count = g.at, 0
		}
		g.i, g.n = 0, max(n, 0)
		if g.n == 0 {
			return 0, err
		}
	}
	n := copy(p, g.buf[g.i:g.n])
	g.i += n
	return n, nil
}

// rest lets the server fill the socket for a while, unseen: the runtime would be woken for each packet.
func (g *coalescedConn) rest(wait time.Duration) {
	setLowWater(g.Conn, readSize/2)
	time.Sleep(wait)
	setLowWater(g.Conn, 1)
}
