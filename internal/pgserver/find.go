package pgserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrNotFound means that this machine has no Postgres server binaries where Find looks.
var ErrNotFound = errors.New("no Postgres server binaries")

// places are where packages put the binaries of several versions side by side.
var places = []string{
	"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu, Alpine's older packages
	"/usr/libexec/postgresql*",          // Alpine
	"/usr/pgsql-*/bin",                  // RHEL, from postgresql.org
	"/opt/homebrew/opt/postgresql*/bin", // Homebrew on Apple silicon
	"/usr/local/opt/postgresql*/bin",    // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin", // built from source
}

// Find returns the folder with initdb and postgres. It looks at the folder in WALPOST_TEST_PG_BIN (and
// nowhere else if that is set), then PATH, then what pg_config names, then the places where packages
// put them, newest version first. Its error wraps ErrNotFound.
func Find() (string, error) {
	if bin := os.Getenv("WALPOST_TEST_PG_BIN"); bin != "" {
		if !complete(bin) {
			return "", fmt.Errorf("%w in %s, which WALPOST_TEST_PG_BIN names: initdb and postgres must be there", ErrNotFound, bin)
		}
		return bin, nil
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		// A link in PATH is followed: postgres looks for its libraries and share files next to itself.
		if real, err := filepath.EvalSymlinks(initdb); err == nil && complete(filepath.Dir(real)) {
			return filepath.Dir(real), nil
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		if bin := strings.TrimSpace(string(out)); complete(bin) {
			return bin, nil
		}
	}
	var found []string
	for _, pattern := range places {
		matches, _ := filepath.Glob(pattern) // the patterns are constants and well formed
		found = append(found, matches...)
	}
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	for _, bin := range found {
		if complete(bin) {
			return bin, nil
		}
	}
	return "", fmt.Errorf("%w in WALPOST_TEST_PG_BIN, PATH, pg_config --bindir or %s", ErrNotFound, strings.Join(places, ", "))
}

// complete reports whether bin has all that a private server needs. A client package has neither.
func complete(bin string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`\d+(\.\d+)?`)

// version is the first number in a text like /usr/lib/postgresql/17/bin or "initdb (PostgreSQL) 17.2", 0 where there is none.
func version(text string) float64 {
	v, err := strconv.ParseFloat(number.FindString(text), 64)
	if err != nil {
		return 0
	}
	return v
}
