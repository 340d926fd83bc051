package printable

import (
	"testing"
	"time"
)

// S-321: an age is the same text wherever it is shown.
func TestAge_isInItsLargestUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 45*time.Second + 900*time.Millisecond: "45s", time.Minute: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h00m", 3*time.Hour + 20*time.Minute: "3h20m", 23*time.Hour + 59*time.Minute: "23h59m", 24 * time.Hour: "1d", 5*24*time.Hour + 23*time.Hour: "5d",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}
