package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/printable"
)

type subscribersCommand struct {
	List   subscribersList   `cmd:"" help:"Show each subscriber: where it stands and what it is owed."`
	Pause  subscribersPause  `cmd:"" help:"Stop delivering to a subscriber; it is owed everything from then on."`
	Resume subscribersResume `cmd:"" help:"Deliver what a paused subscriber is owed, in order, and go on."`
	Forget subscribersForget `cmd:"" help:"Remove all that is recorded of a subscriber that has left the configuration."`
}

func (subscribersCommand) Help() string {
	return `Examples:

  walpost subscribers list
  walpost subscribers pause analytics --why "its database moves tonight"
  walpost subscribers resume analytics
  walpost subscribers forget billing --dry-run

Works on the database, with the relay up or down.`
}

type subscribersList struct{ adminOptions }

func (c subscribersList) Run(r *run) error {
	return c.at(r, func(service *admin.Service) error {
		status, err := service.Status(r.ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, map[string]any{"subscribers": status.Subscribers})
		}
		printSubscribers(r.Stdout, status)
		return nil
	})
}

type subscribersPause struct {
	adminOptions
	reasonOption
	Name string `arg:"" help:"Subscriber."`
}

func (subscribersPause) Help() string {
	return `Stops delivering to a subscriber; a running relay sees it within 2 seconds.

  walpost subscribers pause analytics --why "its database moves tonight"

Until resume, its events are recorded in walpost.owed; they hold WAL up to wal_budget. A call that is under way ends first.`
}

func (c subscribersPause) Run(r *run) error {
	return c.change(r, c.Name, c.Why, admin.Paused, (*admin.Service).Pause,
		"%s is paused. A running relay sees that within 2 seconds; from then on its events are recorded as owed and hold WAL up to wal_budget.\n")
}

type subscribersResume struct {
	adminOptions
	reasonOption
	Name string `arg:"" help:"Subscriber."`
}

func (subscribersResume) Help() string {
	return `Delivers to a paused subscriber again; a running relay sees it within 2 seconds.

  walpost subscribers resume analytics

What it is owed is sent first, in order. Then it goes on with the stream.`
}

func (c subscribersResume) Run(r *run) error {
	return c.change(r, c.Name, c.Why, admin.Live, (*admin.Service).Resume,
		"%s is resumed. A running relay sees that within 2 seconds and pays what is owed first, in order.\n")
}

func (o adminOptions) change(r *run, name, why, state string, change func(*admin.Service, context.Context, string, string, string) error, done string) error {
	return o.at(r, func(service *admin.Service) error {
		if err := change(service, r.ctx, name, who(), why); err != nil {
			return err
		}
		if o.JSON {
			return writeJSON(r.Stdout, map[string]string{"subscriber": name, "state": state})
		}
		_, err := fmt.Fprintf(r.Stdout, done, name)
		return err
	})
}

type subscribersForget struct {
	adminOptions
	changeOptions
	Name string `arg:"" help:"Subscriber."`
}

func (subscribersForget) Help() string {
	return `Removes all that is recorded of a subscriber that has left: debt, positions, inbox.

  walpost subscribers forget billing --dry-run
  walpost subscribers forget billing --why "replaced by invoicing"

First take the subscriber out of the configuration and restart the relay. The command is refused while the configuration names the subscriber, while a relay runs that was started with it, and for a minute after. There is no way around that. If the name comes back later, it starts at now.`
}

func (c subscribersForget) Validate() error {
	return config.Invalid(errors.Join(c.adminOptions.Validate(), c.check()))
}

func (c subscribersForget) Run(r *run) error {
	return c.at(r, func(service *admin.Service) error {
		if err := service.Forgettable(r.ctx, c.Name); err != nil {
			return err
		}
		counts, _, err := service.Fitting(r.ctx, debt.Filter{Subscriber: c.Name})
		if err != nil {
			return err
		}
		owed := admin.Total(counts, 0)
		switch {
		case c.DryRun && c.JSON:
			return writeJSON(r.Stdout, map[string]any{"subscriber": c.Name, "would_discard": owed})
		case c.DryRun:
			_, err := fmt.Fprintf(r.Stdout, "Forgetting %s would discard %s; its positions and its inbox would go. Nothing was changed.\n", plain(c.Name, 64), printable.Count(owed, "delivery"))
			return err
		}
		if err := c.askPerson(r, fmt.Sprintf("Forget %s, with %s that it is owed?", plain(c.Name, 64), printable.Count(owed, "delivery"))); err != nil {
			return err
		}
		if err := service.Forget(r.ctx, c.Name, who(), c.Why); err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(r.Stdout, map[string]any{"subscriber": c.Name, "discarded": owed})
		}
		_, err = fmt.Fprintf(r.Stdout, "%s is forgotten; %s discarded.\n", plain(c.Name, 64), printable.Count(owed, "delivery"))
		return err
	})
}
