package lessons_test

import (
	"log/slog"
	"testing"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestAchievements_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return lessons.NewAchievements(pool, slot, slog.New(slog.DiscardHandler))
	})
}

func TestAnalytics_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return lessons.NewAnalytics(pool, slot, slog.New(slog.DiscardHandler))
	})
}

func TestNotifications_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		log := slog.New(slog.DiscardHandler)
		return lessons.NewNotifications(pool, slot, log, lessons.NewLogNotifier(log))
	})
}

func TestRecommendations_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return lessons.NewRecommendations(pool, slot, slog.New(slog.DiscardHandler))
	})
}
