//go:build !linux

package wal

import "time"

// sleep sleeps for a part of a millisecond, as finely as the runtime can.
func sleep(wait time.Duration) { time.Sleep(wait) }
