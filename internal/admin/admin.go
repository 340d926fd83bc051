// Package admin is what operators may see and change: status, owed deliveries, subscribers, replays, single events.
// It never calls a subscriber: a change is a row, which the relay finds. Package ops serves it over HTTP, package cli at
// the command line.
package admin

import (
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// Service shows what is owed and changes it, for the ops API and for the commands. It works on the database alone,
// whether a relay runs or not; a running relay finds a change within two seconds. It is safe for concurrent use.
type Service struct {
	pool       *postgres.Pool
	slot       string
	sources    []*outbox.Source
	configured []string
	// takes is what the configuration sends to a subscriber; nil is everything.
	takes func(subscriber, source, eventType string) bool
}

// New returns the service for a slot. sources are where events are found and marked, configured the
// subscribers that the configuration names.
func New(pool *postgres.Pool, slot string, sources []*outbox.Source, configured []string) *Service {
	return &Service{pool: pool, slot: slot, sources: sources, configured: configured}
}

func (a *Service) debt() *debt.Store { return debt.NewStore(a.pool, a.slot) }
