package wal

import "time"

const (
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

// judgeTraffic counts messages after each read.
func (s *stream) judgeTraffic() {
	if span := s.readAt.Sub(s.counted); span >= busySpan {
		s.busy = time.Duration(s.count)*busyEvery >= span
		s.counted, s.count = s.readAt, 0
	}
}

// gather lets several messages gather while the stream is behind or busy, and reads at once while it is neither.
//
// The server sends every message by itself. A reader that takes each as it comes is woken once per row,
// and so are the kernel and the server; one that lets a millisecond of them gather is woken a thousand
// times a second at most, which leaves the cores to those who produce and handle events.
func (s *stream) gather() {
	wait := time.Duration(0)
	switch {
	case s.behind:
		wait = backlogWait
	case s.busy:
		wait = busyWait
	default:
		return
	}
	// Unseen: the runtime would be woken for each packet.
	setLowWater(s.conn.socket.Conn, 128<<10)
	time.Sleep(wait)
	setLowWater(s.conn.socket.Conn, 1)
}
