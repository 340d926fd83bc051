//go:build outside

package docs

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The example of the page goes into a copy of the repository where the page says, and there it is built, its migration
// applied, its contract tested and its name known to the configuration. It is an outside test because it builds the
// program once more, which takes as long as many tests.
func TestOutside_aSubscriberIsAddedAsShown(t *testing.T) {
	const page = "../../docs/subscribers.md"
	code, migration, file := blocks(t, page, "go"), blocks(t, page, "sql"), blocks(t, page, "yaml")
	if len(code) != 4 || len(migration) != 1 || len(file) != 1 { // the last piece of Go is of a destination that reports later
		t.Fatalf("the page has %d pieces of Go, %d of SQL and %d of YAML, want 4, 1 and 1", len(code), len(migration), len(file))
	}
	root := copyOfRepository(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("internal/lessons/certificates.go", `package lessons

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
)

`+code[0])
	write("internal/lessons/certificates_test.go", `package lessons_test

import (
	"testing"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

`+code[2])
	write("migrations/lessons/00002_certificates.sql", migration[0])
	write("walpost.yaml", file[0])
	kinds, err := os.ReadFile(filepath.Join(root, "internal/app/subscribers.go"))
	if err != nil {
		t.Fatal(err)
	}
	const before = "\treturn Kinds{\n"
	if !bytes.Contains(kinds, []byte(before)) {
		t.Fatalf("internal/app/subscribers.go does not have %q", before)
	}
	write("internal/app/subscribers.go", strings.Replace(string(kinds), before, before+code[1]+"\n", 1))

	for _, command := range []string{
		"go test -count=1 -run Certificates ./internal/lessons",
		"go test -count=1 ./migrations",
		"go run ./cmd/walpost config --database-url=postgres://127.0.0.1/none",
	} {
		words := strings.Fields(command)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir = root
		output, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(output, []byte("no tests to run")) {
			t.Fatalf("%s: %v\n%s", command, err, output)
		}
	}
}

// copyOfRepository copies what is needed to build and test.
func copyOfRepository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "cmd", "deploy", "internal", "migrations"} {
		err := filepath.WalkDir(filepath.Join("..", "..", name), func(file string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := filepath.Join(root, strings.TrimPrefix(file, filepath.Join("..", "..")))
			if entry.IsDir() {
				return os.MkdirAll(to, 0o700)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
