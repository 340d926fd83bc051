package config

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// S-07: whatever stands in the file, reading it ends soon, with little memory, and with words.
func TestParse_endsWhateverStandsInTheFile(t *testing.T) {
	bomb := "slot: a\nx0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		bomb += fmt.Sprintf("x%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BIG": strings.Repeat("x", 100<<10)}
	for name, test := range map[string]struct{ file, says string }{
		"an alias bomb":            {bomb, "with its aliases and references"},
		"an alias bomb of sources": {strings.Replace(bomb, "x11:", "sources:", 1), "with its aliases and references"},
		"an alias of itself":       {"slot: &a [*a]\n", "no anchor before it"},
		"a device":                 {"ops_token: {file: /dev/zero}\n", "no regular file"},
		"a large file":             {"ops_token: {file: " + large + "}\n", "too large"},
		"brackets":                 {"slot: " + strings.Repeat("[", 100_000), "nested deeper"},
		"braces":                   {"slot: " + strings.Repeat("{a: ", 10_000), "nested deeper"},
		"a large variable, often":  {"slot: \"" + strings.Repeat("${BIG}", 1000) + "\"\n", "with its aliases and references"},
		"a file without end":       {strings.Repeat("# a comment\n", 30_000), "too large"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err := parse(t, test.file, env)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), test.says) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v, want %q", name, err, test.says)
		}
		if took, size := time.Since(began), (after.TotalAlloc-before.TotalAlloc)>>20; took > parseTime || size > 500 {
			t.Errorf("%s: took %s and %d MiB", name, took, size)
		}
	}
}
