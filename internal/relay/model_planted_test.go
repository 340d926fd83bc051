//go:build !race

package relay

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// The race detector has nothing to find here that it does not meet in TestModel_keepsItsPromisesThroughRandomHistories, and
// makes the search six times as long: "make test" runs it in the part without it.
func TestModel_findsPlantedBugs(t *testing.T) {
	finds := map[string]string{ // where only one kind of complaint will do
		"owes nothing that stands still":  "P6: s",
		"holds WAL for what is confirmed": "P6: nothing is confirmed",
		"ends a key at its first report":  "P3: s",
		"does not wait for an abort":      "P3: s",
	}
	for name, planted := range map[string]*plant{
		"confirms too far":                   {confirmsTooFar: true},
		"forgets to record":                  {forgetsRecord: true},
		"reads backwards":                    {readsBackwards: true},
		"takes ids":                          {takesIDs: true},
		"forgets who left":                   {forgetsLeavers: true},
		"marks too early":                    {marksWhatIsOwed: true},
		"forgets what is open":               {forgetsOpen: true},
		"forgets the bound of what is added": {forgetsBound: true},
		"begins with what waits alone":       {beginsLate: true},
		"confirms before it writes":          {confirmsFirst: true},
		"owes nothing that stands still":     {neverOwes: true},
		"holds WAL for what is confirmed":    {holdsConfirmed: true},
		"ends a key at its first report":     {releasesEarly: true},
		"does not wait for an abort":         {forgetsAbort: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				found := false
				synctest.Test(t, func(t *testing.T) {
					found = slices.ContainsFunc(runModel(seed, planted, slog.New(slog.DiscardHandler)), func(broken string) bool {
						return strings.HasPrefix(broken, finds[name])
					})
				})
				if found {
					return
				}
			}
			t.Errorf("60 histories did not find that the relay %s", name)
		})
	}
}
