package wal

import (
	"net"
	"os"
)

// socket is the connection as the kernel has it: what TLS, where there is TLS, reads from and writes to.
//
// TLS asks for a record at a time, and the server sends a record for each message. While a stream runs, only fill reads
// from the kernel, as much as there is, and TLS takes its records from that: what waits for the server is then seen in
// the loop of the stream, and nowhere else.
type socket struct {
	net.Conn
	received  readBuffer // by fill, and not taken by TLS
	streaming bool       // only fill reads from the kernel
}

// Read is how TLS reads, and the driver where there is no TLS.
func (s *socket) Read(p []byte) (int, error) {
	if !s.streaming {
		return s.Conn.Read(p)
	}
	n := copy(p, s.received.unread())
	s.received.advance(n)
	if n == 0 {
		return 0, os.ErrDeadlineExceeded // after which TLS can go on reading
	}
	return n, nil
}

// fill reads once from the kernel, and waits for it.
func (s *socket) fill() (n int, full bool, err error) { return s.received.readFrom(s.Conn, 0) }
