package app

import (
	"testing"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// Whoever adds a line to subscribers.go is held to the contract without writing a test for it.
func TestSubscribers_keepTheContract(t *testing.T) {
	for name, build := range Subscribers() {
		// A kind with keys of its own has its effect elsewhere, where Run cannot see it: its folder has the tests.
		if checks()[name] != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			subscribertest.Run(t, func(t *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
				built, err := build(Room{Pool: pool, Slot: slot, Log: discard})
				if err != nil {
					t.Fatal(err)
				}
				return built
			})
		})
	}
}
