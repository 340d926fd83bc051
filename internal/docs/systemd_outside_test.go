//go:build outside

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxExposure is how exposed a unit may be by the count of systemd-analyze, where 10 is not confined at all.
const maxExposure = 1.5

// Each unit is one that systemd takes, and is confined.
func TestOutside_SystemdUnitsAreValidAndConfined(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("systemd-analyze is needed (Debian's package systemd): %v", err)
	}
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatalf("units %v, %v", units, err)
	}
	options := literals(t, regexp.MustCompile(`env:"(WALPOST_[A-Z_]+)"`))
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// The program need not be installed here; that it is there is all that is looked at.
		here := filepath.Join(t.TempDir(), filepath.Base(unit))
		if err := os.WriteFile(here, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/walpost", "/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", here).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", here).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		found := regexp.MustCompile(`Overall exposure level for \S+: ([\d.]+)`).FindSubmatch(out)
		if found == nil {
			t.Errorf("%s: systemd-analyze tells no exposure:\n%s", unit, out)
			continue
		}
		exposure, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil || exposure > maxExposure {
			t.Errorf("%s: the exposure is %s, want at most %v", unit, found[1], maxExposure)
		}
		t.Logf("%s: exposure %s", filepath.Base(unit), found[1])
		for _, variable := range regexp.MustCompile(`(WALPOST_[A-Z_]+)=`).FindAllStringSubmatch(string(text), -1) {
			if !options[variable[1]] {
				t.Errorf("%s sets %s, which is no option", unit, variable[1])
			}
		}
		// Each has its role of deploy/sql/roles.sql.
		part := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(unit), "walpost-"), ".service")
		if !strings.Contains(string(text), "postgres://walpost_"+part+":") {
			t.Errorf("%s does not say that it connects as walpost_%s", unit, part)
		}
	}
}
