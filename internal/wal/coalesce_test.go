package wal

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// source is a connection on which a byte, here a message, comes every interval.
type source struct {
	net.Conn
	every time.Duration
	begun time.Time
	read  int // bytes so far
	reads int
}

func (s *source) Read(p []byte) (int, error) {
	next := s.begun.Add(time.Duration(s.read+1) * s.every)
	if wait := time.Until(next); wait > 0 {
		time.Sleep(wait)
	}
	n := min(int(time.Since(s.begun)/s.every)-s.read, len(p))
	s.read += n
	s.reads++
	return n, nil
}

func TestCoalescedConn_readsABusyStreamAThousandTimesASecondAndAnyOtherAtOnce(t *testing.T) {
	for _, test := range []struct {
		name      string
		every     time.Duration
		behind    bool
		min, most int           // reads in a second
		wait      time.Duration // of a message for its read, at most
	}{
		{"quiet", time.Millisecond, false, 1000, 1000, 0},
		{"busy", 20 * time.Microsecond, false, 900, 1600, busyWait},
		{"behind", 20 * time.Microsecond, true, 450, 550, backlogWait},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &source{every: test.every, begun: time.Now()}
				g := &coalescedConn{Conn: conn, buf: make([]byte, readSize), behind: test.behind}
				var longest time.Duration
				message := make([]byte, 1)
				for taken := 0; time.Since(conn.begun) < time.Second; taken++ {
					if _, err := g.Read(message); err != nil {
						t.Fatal(err)
					}
					g.count++
					came := conn.begun.Add(time.Duration(taken+1) * test.every)
					longest = max(longest, time.Since(came))
				}
				if conn.reads < test.min || conn.reads > test.most {
					t.Errorf("%d reads in a second, want %d to %d", conn.reads, test.min, test.most)
				}
				if longest > test.wait {
					t.Errorf("a message waited %v for its read, want at most %v", longest, test.wait)
				}
			})
		})
	}
}

// failing is a connection whose reads end with an error.
type failing struct {
	net.Conn
	err error
}

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// S-109: when a read fails, the driver reads on in a goroutine of its own. It must hand nothing over: that belongs to the
// goroutine of the stream, which may be that of the next connection by then.
func TestCoalescedConn_handsNothingOverAfterAReadThatFailed(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int // hand-overs in three reads
	}{
		{io.ErrUnexpectedEOF, 1},
		{os.ErrDeadlineExceeded, 3}, // the stream goes on
	} {
		handedOver := 0
		g := &coalescedConn{Conn: &failing{err: test.err}, buf: make([]byte, readSize), beforeRead: func() { handedOver++ }}
		for range 3 {
			if _, err := g.Read(make([]byte, 1)); !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
		}
		if handedOver != test.want {
			t.Errorf("%v: %d hand-overs, want %d", test.err, handedOver, test.want)
		}
	}
}
