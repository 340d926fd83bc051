package app

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/sink/file"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Kinds are the subscribers that a configuration can name, by kind.
type Kinds map[string]func(Resources) (subscriber.Subscriber, error)

// Resources is what a subscriber may use.
type Resources struct {
	Pool   *postgres.Pool
	Slot   string // part of the key in walpost.inbox
	Log    *slog.Logger
	Mail   config.Mail
	Config config.Subscriber
	// SeveralSources tells that the subscriber gets events of more than one source.
	SeveralSources bool
	// Zones are those of times without one, by source.
	Zones map[string]*time.Location
}

// Subscribers returns the built-in kinds. A new subscriber is a line here and a file of its own.
func Subscribers() Kinds {
	return Kinds{
		"achievements": func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewAchievements(r.Pool, r.Slot, r.Log), nil
		},
		"analytics": func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewAnalytics(r.Pool, r.Slot, r.Log), nil
		},
		"notifications": newNotifications,
		"recommendations": func(r Resources) (subscriber.Subscriber, error) {
			return lessons.NewRecommendations(r.Pool, r.Slot, r.Log), nil
		},
		"file": func(r Resources) (subscriber.Subscriber, error) {
			o := fileOptions(r.Config)
			o.Envelope = r.envelope()
			return file.New(o)
		},
		"stdout": func(r Resources) (subscriber.Subscriber, error) {
			return file.NewStdout(r.Config.Name, r.Config.Format, r.envelope(), os.Stdout)
		},
		"webhook": func(r Resources) (subscriber.Subscriber, error) {
			o := webhookOptions(r.Config)
			o.SeveralSources, o.Zones = r.SeveralSources, r.Zones
			return webhook.New(o)
		},
	}
}

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

func (r Resources) envelope() envelope.Writer {
	return envelope.Writer{SeveralSources: r.SeveralSources, Zones: r.Zones}
}

// Keys are those of the configuration that belong to some kinds alone, by kind.
func Keys() map[string][]string {
	return map[string][]string{
		"webhook": {"url", "secret", "sign_headers", "headers", "allow_private", "format"},
		"file":    {"path", "rotate", "format"},
		"stdout":  {"format"},
	}
}

// Checks look at what a configuration says of kinds that have keys of their own.
func Checks() map[string]config.Check {
	return map[string]config.Check{
		"webhook": func(s config.Subscriber, fail func(string, error)) {
			for _, problem := range webhookOptions(s).Problems() {
				fail(problem.Key, problem.Err)
			}
		},
		"file": func(s config.Subscriber, fail func(string, error)) {
			for _, problem := range fileOptions(s).Problems() {
				fail(problem.Key, problem.Err)
			}
		},
		"stdout": func(s config.Subscriber, fail func(string, error)) {
			for _, problem := range file.StdoutProblems(s.Format) {
				fail(problem.Key, problem.Err)
			}
		},
	}
}

func fileOptions(s config.Subscriber) file.Options {
	return file.Options{Name: s.Name, Path: s.Path, Format: s.Format, Rotate: int64(s.Rotate)}
}

func webhookOptions(s config.Subscriber) webhook.Options {
	o := webhook.Options{
		Name: s.Name, URL: s.URL, Headers: make(map[string]string, len(s.Headers)), AllowPrivate: s.AllowPrivate,
		SignHeaders: s.SignHeaders, Format: s.Format, Batch: int(s.Batch), Concurrency: int(s.Concurrency), Timeout: s.Timeout.Std(),
	}
	for _, secret := range s.Secret {
		o.Secrets = append(o.Secrets, secret.Live())
	}
	for name, value := range s.Headers {
		o.Headers[name] = value.Live()
	}
	return o
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
		sub, err := k[options.Kind](r)
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
