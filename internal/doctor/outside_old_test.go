//go:build outside && linux && amd64

package doctor_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testdb"
)

// No one packs a Postgres as old as this for other systems and processors, so there this test does not exist; a skipped
// one would fail the run.

// The server is one that walpost has never supported; what fixes it is a supported one with the same database.
func TestOutside_aServerThatIsTooOldIsToldAndANewerOneFixesIt(t *testing.T) {
	script := exec.Command("sh", "../../scripts/get-postgres.sh", "13")
	script.Stderr = os.Stderr
	bin, err := script.Output()
	if err != nil {
		t.Fatalf("scripts/get-postgres.sh 13: %v", err)
	}
	old, err := pgserver.Start(t.Context(), pgserver.Options{Bin: strings.TrimSpace(string(bin)), Settings: sound})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := old.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	h := newHarness(t, testdb.NewServer(t, sound))
	h.options.DatabaseURL = old.DSN(h.db.Name)
	execute(t, old.DSN("postgres"), "CREATE DATABASE "+h.db.Name)

	report := doctor.Run(t.Context(), h.options)
	found := find(report, "version")
	if found.Level != doctor.Problem || found.Finding != "this is Postgres 13" || found.Fix == nil || !strings.Contains(found.Fix.Do, "at one of Postgres 14 to 18") {
		t.Errorf("of Postgres 13 the doctor says%s", describe([]doctor.Finding{found}))
	}
	if f := find(report, "connection"); f.Level != doctor.OK {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	h.options.DatabaseURL = h.db.DSN
	for _, f := range doctor.Run(t.Context(), h.options).Findings {
		if f.Level != doctor.OK && f.Level != doctor.Skipped && f.Check != "standby-sync" {
			t.Errorf("of a newer server the doctor says%s", describe([]doctor.Finding{f}))
		}
	}
}
