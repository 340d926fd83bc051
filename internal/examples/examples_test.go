package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) { os.Exit(testprogram.Main(m)) }

// folder of an example.
func folder(name string) string { return filepath.Join("..", "..", "deploy", "examples", name) }

func TestExamples_lessonsRunsToItsEnd(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), testprogram.Binary(t), folder("lessons"), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"[1 lesson-1 lesson-2 lesson-3 lesson-4 lesson-5 lesson-6]", "[18 18 0]", "stopped clean"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
