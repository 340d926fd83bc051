//go:build outside

package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

// What the tests with this build tag need comes from outside of this repository and of Go: .ci/run installs it, and
// scripts/get-postgres.sh fetches the old server.

// The server's clock goes wrong, and NTP sets it while the server runs: libfaketime reads from a file how far off
// the clock of a process is.
func TestOutside_aClockThatIsOffIsToldAndNTPFixesIt(t *testing.T) {
	library := libfaketime(t)
	clock := filepath.Join(publicDir(t), "clock")
	off := func(by string) {
		t.Helper()
		// In place of the old one, and not into it: a process of the server may be reading.
		if err := os.WriteFile(clock+".new", []byte(by+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	off("+0")
	t.Setenv("LD_PRELOAD", library)
	t.Setenv("FAKETIME_TIMESTAMP_FILE", clock)
	t.Setenv("FAKETIME_NO_CACHE", "1")
	t.Setenv("DONT_FAKE_MONOTONIC", "1") // a clock that is set does not change how long a second is
	server := testdb.NewServer(t, sound)
	h := newHarness(t, server)
	for _, fault := range []struct{ by, says string }{
		{"-90", "ahead of the server's"},
		{"+90", "behind the server's"},
	} {
		off(fault.by)
		found := h.check("clock")
		if found[0].Level != doctor.Warning || !strings.Contains(found[0].Finding, fault.says) || found[0].Fix == nil || !strings.Contains(found[0].Fix.Do, "NTP") {
			t.Errorf("of a server whose clock is off by %s s the doctor says%s", fault.by, describe(found))
		}
		off("+0")
		if found := h.check("clock"); found[0].Level != doctor.OK {
			t.Errorf("after the clock was set the doctor says%s", describe(found))
		}
	}
	off("+3")
	if found := h.check("clock"); found[0].Level != doctor.OK {
		t.Errorf("of three seconds the doctor says%s", describe(found))
	}
}

// libfaketime returns where the library is, which only a package manager brings.
func libfaketime(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("no libfaketime: apt-get install libfaketime")
	return ""
}
