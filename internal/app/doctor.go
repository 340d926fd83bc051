package app

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/subscriber"
)

// DoctorOptions is what the doctor looks at for a relay.
func DoctorOptions(o config.Relay) doctor.Options {
	options := doctor.Options{
		DatabaseURL: o.DatabaseURL.Live(), ReplicationURL: o.Stream().Live(),
		Slot: o.Slot, Publication: o.Publication, Sources: SourcesOf(o.Flow),
		Migrations: MigrationsOf(o.Flow), Drain: o.Drain.Std(), WALBudget: int64(o.WALBudget),
		StopOnLoss: o.OnLostSlot == "stop",
	}
	for _, s := range o.Subscribers {
		filter := s.Filter()
		filter.Types = typesOf(s)
		options.Subscribers = append(options.Subscribers, doctor.Subscriber{
			Name: s.Name, RenamedFrom: s.RenamedFrom, Timeout: s.Timeout.Std(), StallAfter: s.StallAfter.Std(), Tables: tablesOf[s.Kind],
			Outside: s.Options != nil, Sources: s.Sources,
			Filter: filter, Probe: probeOf(s),
		})
	}
	return options
}

// probeOf asks the destination of a subscriber, nil where there is none to ask, or where its options are not all known:
// the doctor needs no secret and no variable that only deliveries need.
func probeOf(s config.Subscriber) func(context.Context) error {
	if s.Options == nil {
		return nil
	}
	known := true
	s.Options.Check(s, func(string, error) { known = false })
	if !known {
		return nil
	}
	return func(ctx context.Context) error {
		built, err := Subscribers()[s.Kind].New(Resources{Config: s, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if closer, ok := built.(io.Closer); ok {
			defer closer.Close()
		}
		if prober, ok := built.(subscriber.Prober); ok {
			return prober.Probe(ctx)
		}
		return nil
	}
}

// typesOf are the types that a built-in subscriber understands; nil is all.
func typesOf(s config.Subscriber) []string {
	if slices.Contains(config.LessonKinds, s.Kind) {
		return []string{lessons.TypeLessonCompleted}
	}
	return nil
}

// tablesOf are the rights that the built-in subscribers need in the database, by kind. Their inbox is among
// the relay's own tables.
var tablesOf = map[string][]doctor.Grant{
	"achievements": {
		{Schema: "public", Table: "lesson_progress", Rights: []string{"SELECT"}},
		{Schema: "public", Table: "user_achievements", Rights: []string{"SELECT", "INSERT", "UPDATE"}},
	},
	"analytics":       {{Schema: "public", Table: "analytics_events", Rights: []string{"SELECT", "INSERT"}}},
	"notifications":   {{Schema: "public", Table: "notifications", Rights: []string{"SELECT", "INSERT", "UPDATE"}}},
	"recommendations": {{Schema: "public", Table: "recommendations", Rights: []string{"SELECT", "INSERT", "UPDATE"}}},
}
