package relay

import (
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/wal"
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

// watchSilence tells of a sender that seems to be frozen.
func (r *Relay) watchSilence(before silence, slot wal.Slot) silence {
	now := time.Now()
	look := senderLook{pid: slot.ActivePID, heard: r.wal.Heard(), activity: slot.Activity, end: slot.End}
	after, silent := before.next(now, look)
	r.metrics.silent.Set(silent.Seconds())
	problem := ""
	if silent > silenceLimit {
		problem = fmt.Sprintf("the server has sent nothing for %v, although its WAL has grown by %d bytes meanwhile, and its WAL sender (pid %d) shows no sign of work: "+
			"neither its statistics nor what it waits for has changed. Look at that process on the server's machine; one that is suspended (state T) needs SIGCONT, "+
			"and one that does not come back a restart of the server",
			now.Sub(look.heard).Round(time.Second), look.end-after.first.end, look.pid)
	}
	r.setProblem(&r.silent, problem)
	return after
}
