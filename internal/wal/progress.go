package wal

import (
	"sync/atomic"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// Progress is how far a stream is. The goroutine of the stream writes it, any other may read it; the zero value is that
// of a stream which has received nothing.
type Progress struct {
	receivedLSN  atomic.Uint64
	handedLSN    atomic.Uint64
	confirmedLSN atomic.Uint64
	heardAt      atomic.Int64 // when a message last came, or could not for us, in nanoseconds since 1970
}

// Received is the highest WAL position that was received.
func (p *Progress) Received() event.LSN { return event.LSN(p.receivedLSN.Load()) }

// HandedOver is the position up to which everything that was received was also handed over by the Receiver.
func (p *Progress) HandedOver() event.LSN { return event.LSN(p.handedLSN.Load()) }

// Heard is when the server last sent a message, or when we last kept it from doing so.
func (p *Progress) Heard() time.Time { return time.Unix(0, p.heardAt.Load()) }

// Restart forgets what was received from a slot that was lost or a server that is another one.
func (p *Progress) Restart(confirmed event.LSN) {
	p.receivedLSN.Store(uint64(confirmed))
	p.handedLSN.Store(uint64(confirmed))
	p.confirmedLSN.Store(uint64(confirmed))
}

func (p *Progress) noteHeard(at time.Time) { p.heardAt.Store(at.UnixNano()) }

func (p *Progress) noteReceived(lsn event.LSN) {
	if uint64(lsn) > p.receivedLSN.Load() { // one writer: the goroutine of the stream
		p.receivedLSN.Store(uint64(lsn))
	}
}

// noteHandedOver is called after the Receiver's HandOver.
func (p *Progress) noteHandedOver() { p.handedLSN.Store(p.receivedLSN.Load()) }

func (p *Progress) noteConfirmed(lsn event.LSN) { p.confirmedLSN.Store(uint64(lsn)) }
