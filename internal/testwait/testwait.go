// Package testwait waits in tests for what other processes do and no channel tells. Under virtual time a test needs none of
// it: there synctest.Wait says when everything stands still.
package testwait

import (
	"testing"
	"time"
)

// limit is long: a test that waits for what comes must not fail because the machine is busy.
const limit = time.Minute

// Eventually returns when cond holds, and ends the test when it has not for a minute. It asks less often the longer it has
// waited: asking must not slow down what is waited for.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	begin := time.Now()
	for !cond() {
		waited := time.Since(begin)
		if waited > limit {
			t.Fatalf("did not happen in time: %s", what)
		}
		time.Sleep(min(5*time.Millisecond+waited/20, 100*time.Millisecond))
	}
}
