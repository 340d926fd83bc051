package relay

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// silenceLimit is how long the server may send nothing and show no sign of work, while its WAL grows.
const silenceLimit = time.Minute

// senderLook is what one look shows of the session that sends the stream.
type senderLook struct {
	pid      int
	heard    time.Time // when it last sent something
	activity string    // its statistics, and what it waits for
	end      event.LSN // of the server's WAL
}

// silence is a series of looks in which nothing but the end of the WAL has moved.
type silence struct {
	first senderLook
	since time.Time // of the first look
}

// next takes the next look, and returns how long the sender has been silent without a sign of work; 0 while it
// works, or has nothing to do.
//
// A server that decodes a large transaction, perhaps of tables that are none of ours, sends nothing for minutes
// either. But it writes and reads spill files, and its statistics tell so.
func (s silence) next(now time.Time, look senderLook) (silence, time.Duration) {
	if s.since.IsZero() || look.pid == 0 || look.pid != s.first.pid || look.activity != s.first.activity || !look.heard.Equal(s.first.heard) {
		return silence{first: look, since: now}, 0
	}
	if look.end <= s.first.end {
		return s, 0
	}
	return s, now.Sub(s.since)
}
