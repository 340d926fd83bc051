package relay

import (
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// S-56: nothing but the end of the WAL moves. Whatever else moves is a sign of work.
func TestSilence_isThatOfASenderWithoutASignOfWork(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * 5 * time.Second) }
	frozen := func(n int) senderLook { return senderLook{7, begin, "10 txns Client/WalSenderWaitForWAL", 1000} }
	growing := func(n int) senderLook {
		look := frozen(n)
		look.end += event.LSN(n)
		return look
	}
	for name, test := range map[string]struct {
		nextLook func(n int) senderLook
		want     time.Duration // after the look number 20
	}{
		"frozen":                 {growing, 100 * time.Second},
		"idle server":            {frozen, 0},
		"spills a transaction":   {func(n int) senderLook { l := growing(n); l.activity = at(n).String(); return l }, 0},
		"sends":                  {func(n int) senderLook { l := growing(n); l.heard = at(n); return l }, 0},
		"another session":        {func(n int) senderLook { l := growing(n); l.pid = 7 + n/10; return l }, 0},
		"no one reads":           {func(n int) senderLook { l := growing(n); l.pid = 0; return l }, 0},
		"works now and then":     {func(n int) senderLook { l := growing(n); l.heard = at(n / 4 * 4); return l }, 0},
		"froze in the 10th look": {func(n int) senderLook { l := growing(n); l.heard = at(min(n, 10)); return l }, 50 * time.Second},
	} {
		var s silence
		var got time.Duration
		for n := range 21 {
			s, got = s.next(at(n), test.nextLook(n))
		}
		if got != test.want {
			t.Errorf("%s: silent for %v, want %v", name, got, test.want)
		}
	}
}
