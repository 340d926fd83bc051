package cli

import (
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
)

// filterOptions choose deliveries.
type filterOptions struct {
	Subscriber string `placeholder:"NAME" help:"Owed to this subscriber."`
	Source     string `placeholder:"NAME" help:"From this source."`
	State      string `enum:",waiting,dead" default:"" placeholder:"STATE" help:"waiting or dead. Default: both; for deadletters: dead."`
	Type       string `placeholder:"TYPE" help:"Events of this type."`
	Key        string `placeholder:"KEY" help:"Events of this key."`
	Event      string `placeholder:"ID" help:"This event."`
	Occurrence string `placeholder:"TEXT" help:"Which of several events with one id; walpost event ID shows it."`
	Since      when   `placeholder:"TIME" help:"Recorded since: 2026-01-31T15:04:05Z, or how long ago: 30m, 2h, 7d."`
	Until      when   `placeholder:"TIME" help:"Recorded before."`
	Error      string `placeholder:"TEXT" help:"The last error contains this text."`
}

func (o filterOptions) filter() debt.Filter {
	filter := debt.Filter{
		Subscriber: o.Subscriber, Source: o.Source, State: lane.State(o.State), Type: o.Type, Key: o.Key,
		Since: o.Since.Time, Until: o.Until.Time, Error: o.Error, Occurrence: o.Occurrence,
	}
	if o.Event != "" {
		filter.Events = []string{o.Event}
	}
	return filter
}
