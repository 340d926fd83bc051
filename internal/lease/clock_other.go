//go:build !linux

package lease

import "time"

var started = time.Now()

// bootTime is the monotonic clock, which on some systems stands still while the machine is suspended.
func bootTime() time.Duration { return time.Since(started) }

// namespace is unlike any other: here no one can tell where a process runs.
func namespace() string { return random() }
