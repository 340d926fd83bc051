package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/debt"
)

// Pause makes a subscriber owe everything from now on, and Resume lets it be paid and go on. Both may be
// repeated.
func (a *Service) Pause(ctx context.Context, subscriber, who, why string) error {
	return a.debt().Pause(ctx, subscriber, who, why)
}

// Resume is the end of Pause.
func (a *Service) Resume(ctx context.Context, subscriber, who, why string) error {
	return a.debt().Resume(ctx, subscriber, who, why)
}

// recently is how long ago a relay must have written a position for no one to be sure that it has ended.
const recently = time.Minute

// Forgettable returns an error while a subscriber must not be forgotten: the configuration names it, or a
// relay that has it may be running. Relays write at their start which subscribers have left.
func (a *Service) Forgettable(ctx context.Context, name string) error {
	if slices.Contains(a.configured, name) {
		return debt.Refused(fmt.Sprintf("forget subscriber %q: it is in the configuration: take it out, restart the relay, and forget it then", name))
	}
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(status.Subscribers, func(s Subscriber) bool { return s.Name == name })
	if at < 0 || status.Subscribers[at].State == Gone {
		return nil // of the first, the debt knows whether there is anything of it
	}
	ago := status.At.Sub(status.Subscribers[at].LastSeen).Round(time.Second)
	switch {
	case status.Slot.Active:
		return debt.Refused(fmt.Sprintf("forget subscriber %q: the relay that runs has it: restart that relay without it, and forget it then", name))
	case ago < recently:
		return debt.Refused(fmt.Sprintf("forget subscriber %q: a relay had it %s ago and may come back: wait a minute, or start a relay without it", name, ago))
	}
	return nil
}

// Forget removes everything about a subscriber, unless it is not Forgettable.
func (a *Service) Forget(ctx context.Context, name, who, why string) error {
	if err := a.Forgettable(ctx, name); err != nil {
		return err
	}
	store, err := a.debtWithTables(ctx)
	if err != nil {
		return err
	}
	if err := store.Forget(ctx, name, who, why); err != nil {
		return err
	}
	return a.replays().CancelAll(ctx, name)
}
