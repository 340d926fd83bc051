package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// aProbe is there when a subscriber has a destination that can be asked.
func aProbe(_ context.Context, c *checker) (string, error) {
	for _, s := range c.Subscribers {
		if s.Probe != nil {
			return "", nil
		}
	}
	return "no subscriber has a destination that can be asked", nil
}

// askFor is how long one destination may take to answer.
const askFor = 3 * time.Second

// checkDestinations asks each destination, in turns, as long as the check may take. That one is away is no fault of the
// configuration: its events wait.
func checkDestinations(ctx context.Context, c *checker) ([]Finding, error) {
	var found []Finding
	for _, s := range c.Subscribers {
		if s.Probe == nil {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, askFor)
		err := s.Probe(asked)
		cancel()
		switch {
		case err == nil:
		case subscriber.IsRisk(err):
			found = append(found, warning(err.Error(), "an event that counts as delivered can be lost there, or kept twice",
				&Fix{Do: "change the setting of the destination"}).about(s.Name))
		default:
			found = append(found, warning(fmt.Sprintf("its destination takes nothing now: %v", err),
				"its events wait, and hold WAL up to wal_budget",
				&Fix{Do: "start the destination, or correct what walpost.yaml says of it"}).about(s.Name))
		}
	}
	return found, nil
}
