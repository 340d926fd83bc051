package lane_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// An outage kills nothing, unless someone has said how long an event may fail.
func TestLane_givesUpAfterTheTimeThatWasSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := settings()
		o.GiveUpAfter = time.Hour
		r := run(t, subscribertest.Failing(-1), o)
		begun := time.Now()
		r.offer("K/0")
		end := r.awaitEnd("K/0")
		if took := end.at.Sub(begun); !end.dead || took < time.Hour || took > time.Hour+2*o.Backoff.Max {
			t.Errorf("ended after %v, dead %v, want dead after %v", took, end.dead, o.GiveUpAfter)
		}
	})
}
