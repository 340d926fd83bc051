package lane

import (
	"math/rand/v2"
	"time"
)

// maxRetryAfter bounds how long a receiver can ask to be left alone.
const maxRetryAfter = time.Hour

// Backoff is how long to wait after failures in a row.
type Backoff struct {
	Initial, Max time.Duration
}

// Wait returns a random time between Initial and Initial·2^(failures−1), at most Max ("full jitter" above
// a floor). It is right for any number of failures: a delivery may fail for a year.
func (b Backoff) Wait(failures int) time.Duration {
	floor := min(max(b.Initial, time.Millisecond), max(b.Max, time.Millisecond))
	ceiling := floor
	for range min(failures, 64) - 1 {
		if ceiling >= b.Max/2 {
			ceiling = max(b.Max, floor)
			break
		}
		ceiling *= 2
	}
	return floor + rand.N(ceiling-floor+1)
}
