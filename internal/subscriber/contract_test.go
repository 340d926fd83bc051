package subscriber_test

import (
	"log/slog"
	"testing"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestAchievements_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return subscriber.NewAchievements(pool, slot, slog.New(slog.DiscardHandler))
	})
}

func TestAnalytics_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return subscriber.NewAnalytics(pool, slot, slog.New(slog.DiscardHandler))
	})
}

func TestNotifications_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		log := slog.New(slog.DiscardHandler)
		return subscriber.NewNotifications(pool, slot, log, subscriber.NewLogNotifier(log))
	})
}

func TestRecommendations_keepTheContract(t *testing.T) {
	subscribertest.Run(t, func(_ *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
		return subscriber.NewRecommendations(pool, slot, slog.New(slog.DiscardHandler))
	})
}
