//go:build soak && !race

package relay

import (
	"os"
	"testing"

	"github.com/backendstart/walpost/internal/lane"
)

// largeScopes begin with the small ones, which are what a run of few rounds has.
var largeScopes = []scope{
	{name: "a crash, and b may leave", budget: Unlimited, crashes: 1, leaves: true, events: 3},
	{name: "a row is owed by hand", budget: Unlimited, adds: lane.StateWaiting, events: 2},
	{name: "a row is made dead by hand", budget: Unlimited, adds: lane.StateDead, events: 2},
	{name: "a row is owed by hand, and a key fails", budget: Unlimited, adds: lane.StateWaiting, fails: 1, events: 2},
	{name: "a key fails", budget: Unlimited, fails: 1, events: 3},
	{name: "a key fails, a crash", budget: Unlimited, fails: 1, crashes: 1, leaves: true, events: 3},
	{name: "a crash, and everything again", budget: Unlimited, crashes: 1, allAgain: true, events: 2},
	{name: "a dead letter, people, a crash", budget: Unlimited, refusals: 1, crashes: 1, events: 2},
	{name: "a dead letter, people", budget: Unlimited, refusals: 1, events: 3},
	{name: "a row is owed by hand, a crash", budget: Unlimited, adds: lane.StateWaiting, crashes: 1, events: 2},
}

func TestSoak_smallScopeKeepsThePromisesInEveryOrder(t *testing.T) {
	scopes := largeScopes
	if os.Getenv("WALPOST_ROUNDS") != "" {
		scopes = scopes[:2]
	}
	for _, s := range scopes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			searchAll(t, &s)
		})
	}
}
