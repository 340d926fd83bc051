package app

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/sink/file"
	"github.com/backendstart/walpost/internal/sink/kafka"
	"github.com/backendstart/walpost/internal/sink/nats"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/sink/websocket"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Kinds are the subscribers that a configuration can name, by kind.
type Kinds map[string]Kind

// A Kind is what the program knows of a kind of subscribers.
type Kind struct {
	New func(Resources) (subscriber.Subscriber, error)
	// Kind is what the configuration knows of it: the options of a destination. Zero for code in this binary.
	config.Kind
}

// Resources is what a subscriber may use.
type Resources struct {
	Pool   *postgres.Pool
	Slot   string // part of the key in walpost.inbox
	Log    *slog.Logger
	Mail   config.Mail
	Config config.Subscriber
	// Registry takes the metrics of a kind that has its own; nil keeps them nowhere.
	Registry prometheus.Registerer
	// Leads tells whether the relay leads; nil where there is none.
	Leads func() bool
	// Source is where all events of the subscriber come from; nil where there are several.
	Source *outbox.Source
	// SeveralSources tells that the subscriber gets events of more than one source.
	SeveralSources bool
	// Zones are those of times without one, by source.
	Zones map[string]*time.Location
}

// Subscribers returns the built-in kinds. A new subscriber is a line here and a file of its own.
func Subscribers() Kinds {
	return Kinds{
		"achievements": {New: func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewAchievements(r.Pool, r.Slot, r.Log), nil
		}, Kind: config.Kind{OwnName: true}},
		"analytics": {New: func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewAnalytics(r.Pool, r.Slot, r.Log), nil
		}, Kind: config.Kind{OwnName: true}},
		"notifications": {New: newNotifications, Kind: config.Kind{OwnName: true}},
		"recommendations": {New: func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewRecommendations(r.Pool, r.Slot, r.Log), nil
		}, Kind: config.Kind{OwnName: true}},
		"file": destination(newOf[file.Config], func(r Resources, c *file.Config) (subscriber.Subscriber, error) {
			o := c.Of(r.Config)
			o.Envelope = r.envelope()
			return file.New(o)
		}, nil),
		"kafka": pipeline(destination(kafka.NewConfig, func(r Resources, c *kafka.Config) (subscriber.Subscriber, error) {
			return kafka.New(kafka.Options{Config: c, Name: r.Config.Name, Slot: r.Slot, Timeout: r.Config.Timeout.Std(), Envelope: r.envelope()})
		}, kafka.Defaults)),
		"nats": pipeline(destination(nats.NewConfig, func(r Resources, c *nats.Config) (subscriber.Subscriber, error) {
			return nats.New(nats.Options{
				Config: c, Name: r.Config.Name, Slot: r.Slot, Ordering: r.Config.Ordering, Timeout: r.Config.Timeout.Std(), Envelope: r.envelope(),
			})
		}, nats.Defaults)),
		"stdout": destination(newOf[file.StdoutConfig], func(r Resources, c *file.StdoutConfig) (subscriber.Subscriber, error) {
			return file.NewStdout(r.Config.Name, c.Format, r.envelope(), os.Stdout)
		}, nil),
		"websocket": destination(websocket.NewConfig, func(r Resources, c *websocket.Config) (subscriber.Subscriber, error) {
			return websocket.New(r.hub(c))
		}, nil),
		"webhook": destination(newOf[webhook.Config], func(r Resources, c *webhook.Config) (subscriber.Subscriber, error) {
			o := c.Of(r.Config)
			o.SeveralSources, o.Zones = r.SeveralSources, r.Zones
			return webhook.New(o)
		}, nil),
	}
}

// destination makes a kind with options of its own. defaults changes those of the keys that every subscriber has; nil where
// they fit.
func destination[O config.Options](options func() O, build func(Resources, O) (subscriber.Subscriber, error), defaults func(*config.Subscriber)) Kind {
	return Kind{
		New:  func(r Resources) (subscriber.Subscriber, error) { return build(r, r.Config.Options.(O)) },
		Kind: config.Kind{Options: func() config.Options { return options() }, Defaults: defaults},
	}
}

// pipeline is for a kind whose subscribers report delivery by delivery.
func pipeline(kind Kind) Kind {
	kind.Pipeline = true
	return kind
}

// newOf makes options that have no defaults.
func newOf[O any]() *O { return new(O) }

func newNotifications(r Resources) (subscriber.Subscriber, error) {
	if r.Mail.SMTPURL == "" {
		return lessons.NewNotifications(r.Pool, r.Slot, r.Log, lessons.NewLogNotifier(r.Log)), nil
	}
	notifier, err := newMailer(r.Mail.SMTPURL)
	if err != nil {
		return nil, err
	}
	return lessons.NewNotifications(r.Pool, r.Slot, r.Log, notifier), nil
}

// sourceOf is the one source of a subscriber.
func sourceOf(flow config.Flow, s config.Subscriber) *outbox.Source {
	for i, source := range flow.Sources {
		if len(s.Sources) == 0 || s.Sources[0] == source.Name {
			return SourcesOf(flow)[i]
		}
	}
	return nil
}

func (r Resources) envelope() envelope.Writer {
	return envelope.Writer{SeveralSources: r.SeveralSources, Zones: r.Zones}
}

// Config is what the configuration knows of the kinds.
func (k Kinds) Config() config.Kinds {
	kinds := make(config.Kinds, len(k))
	for name, kind := range k {
		kinds[name] = kind.Kind
	}
	return kinds
}

// Names returns the kinds in the order of their names.
func (k Kinds) Names() []string { return slices.Sorted(maps.Keys(k)) }

// build makes the subscribers of a flow, in its order. shared is what all of them may use.
func (k Kinds) build(flow config.Flow, shared Resources) ([]subscriber.Subscriber, error) {
	var built []subscriber.Subscriber
	var errs []error
	shared.Zones = make(map[string]*time.Location)
	for _, source := range flow.Sources {
		shared.Zones[source.Name] = source.Location()
	}
	for _, options := range flow.Subscribers {
		r := shared
		r.Config, r.Log = options, shared.Log.With("subscriber", options.Name)
		r.SeveralSources = len(options.Sources) > 1 || len(options.Sources) == 0 && len(flow.Sources) > 1
		if !r.SeveralSources {
			r.Source = sourceOf(flow, options)
		}
		sub, err := k[options.Kind].New(r)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("subscriber %q: %w", options.Name, err))
		case sub.Name() != options.Name:
			// Its rows in walpost.inbox carry the name, so two of one kind would share them.
			errs = append(errs, fmt.Errorf("subscriber %q: a subscriber of kind %s can only be named %s", options.Name, options.Kind, sub.Name()))
		}
		built = append(built, sub)
	}
	return built, config.Invalid(errs...)
}
