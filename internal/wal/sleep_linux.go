package wal

import (
	"syscall"
	"time"
)

// sleep sleeps for a part of a millisecond. The runtime's own sleep takes a whole one at least when nothing else runs: it
// waits in epoll, which counts milliseconds.
func sleep(wait time.Duration) {
	if wait >= time.Millisecond {
		time.Sleep(wait)
		return
	}
	span := syscall.NsecToTimespec(wait.Nanoseconds())
	_ = syscall.Nanosleep(&span, nil) // a signal ends it early, which does no harm
}
