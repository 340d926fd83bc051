package admin

import (
	"testing"

	"github.com/backendstart/walpost/internal/relay"
)

// Of 0x3000 bytes since the confirmed position the relay has read 0x2000.
func TestStatus_takesARelaysWordForThoseWhoHaveNothingToDo(t *testing.T) {
	const unread, all = 0x1000, 0x3000
	status := func() Status {
		return Status{
			Slot:        Slot{Name: "walpost", Active: true, Confirmed: "0/1000", LagBytes: all},
			Leader:      &Leader{Holder: "host/7", Term: 3},
			Subscribers: []Subscriber{{Name: "billing", State: Live, LagBytes: all}},
		}
	}
	progress := func() relay.Progress {
		return relay.Progress{
			Slot: "walpost", Holder: "host/7", Term: 3, State: relay.Streaming,
			ReceivedLSN: "0/3000", Subscribers: []relay.Subscriber{{Name: "billing"}},
		}
	}
	one := func(change func(*Subscriber, *relay.Progress)) int64 {
		s, p := status(), progress()
		change(&s.Subscribers[0], &p)
		s.AddProgress(p)
		return s.Subscribers[0].LagBytes
	}
	for what, test := range map[string]struct {
		change func(*Subscriber, *relay.Progress)
		want   int64
	}{
		"nothing to do":            {func(*Subscriber, *relay.Progress) {}, unread},
		"read beyond the look":     {func(_ *Subscriber, p *relay.Progress) { p.ReceivedLSN = "0/9000" }, 0},
		"finished more than that":  {func(s *Subscriber, _ *relay.Progress) { s.LagBytes = 0x10 }, 0x10},
		"an open event":            {func(_ *Subscriber, p *relay.Progress) { p.Subscribers[0].Open = 1 }, all},
		"in debt":                  {func(_ *Subscriber, p *relay.Progress) { p.Subscribers[0].InDebt = true }, all},
		"a key in debt":            {func(_ *Subscriber, p *relay.Progress) { p.Subscribers[0].KeysInDebt = 1 }, all},
		"a delivery that waits":    {func(s *Subscriber, _ *relay.Progress) { s.Waiting.Deliveries = 1 }, all},
		"paused":                   {func(s *Subscriber, _ *relay.Progress) { s.State = Paused }, all},
		"unknown to the relay":     {func(_ *Subscriber, p *relay.Progress) { p.Subscribers = nil }, all},
		"a relay that stands by":   {func(_ *Subscriber, p *relay.Progress) { p.State = relay.Waiting }, all},
		"a relay that read before": {func(_ *Subscriber, p *relay.Progress) { p.ReceivedLSN = "0/0" }, all},
		"a relay of another slot":  {func(_ *Subscriber, p *relay.Progress) { p.Slot = "another" }, all},
		"another relay's holder":   {func(_ *Subscriber, p *relay.Progress) { p.Holder = "host/8" }, all},
		"another term":             {func(_ *Subscriber, p *relay.Progress) { p.Term = 2 }, all},
	} {
		if got := one(test.change); got != test.want {
			t.Errorf("%s: behind by %#x, want %#x", what, got, test.want)
		}
	}
	for what, change := range map[string]func(*Status){
		"no one reads the slot": func(s *Status) { s.Slot.Active = false },
		"no one has led":        func(s *Status) { s.Leader = nil },
	} {
		s := status()
		change(&s)
		if s.AddProgress(progress()); s.Subscribers[0].LagBytes != all {
			t.Errorf("%s: behind by %#x, want %#x", what, s.Subscribers[0].LagBytes, all)
		}
	}
}
