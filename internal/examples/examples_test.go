package examples

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) {
	natstest.Main()
	os.Exit(testprogram.Main(m))
}

// folder of an example.
func folder(name string) string { return filepath.Join("..", "..", "deploy", "examples", name) }

// runToItsEnd runs an example and returns what it has printed, with each of the texts in it.
func runToItsEnd(t *testing.T, name string, texts ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Run(t.Context(), testprogram.Binary(t), folder(name), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	for _, want := range append(texts, "stopped clean") {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not there", want)
		}
	}
	return out.String()
}

func TestExamples_lessonsRunsToItsEnd(t *testing.T) {
	runToItsEnd(t, "lessons", "[1 lesson-1 lesson-2 lesson-3 lesson-4 lesson-5 lesson-6]", "[18 18 0]")
}

func TestExamples_messagesRunsToItsEnd(t *testing.T) {
	text := runToItsEnd(t, "messages", "[paid 5]")
	if n := strings.Count(text, "POST order-"); n != 10 {
		t.Errorf("%d events, want 10", n)
	}
	for n := 1; n <= 5; n++ {
		made := strings.Index(text, fmt.Sprintf("POST order-%d-made order.made key=%d {\"order_id\": %d}", n, n, n))
		paid := strings.Index(text, fmt.Sprintf("POST order-%d-paid order.paid key=%d", n, n))
		if made < 0 || paid < made {
			t.Errorf("order %d: its events stand at %d and %d", n, made, paid)
		}
	}
	if strings.Contains(text, "order-1-lost") {
		t.Error("an event that was rolled back is there")
	}
}

func TestExamples_thoughtsRunsToItsEnd(t *testing.T) {
	text := runToItsEnd(t, "thoughts", "[25 23 23]", "does not fit")
	if n := strings.Count(text, "thoughts.thought."); n != 23 {
		t.Errorf("%d messages, want 23", n)
	}
	for i := 1; i <= 8; i++ {
		at := func(what string) int {
			return strings.Index(text, fmt.Sprintf("thoughts.thought.%s webhook-id=%d walpost-key=%d", what, 3*i-2+map[string]int{"edited": 1, "liked": 2}[what], i))
		}
		if written, edited, liked := at("written"), at("edited"), at("liked"); written < 0 || edited < written || (i == 3) != (liked < edited) {
			t.Errorf("thought %d: its events stand at %d, %d and %d", i, written, edited, liked)
		}
	}
}

func TestExamples_gameRunsToItsEnd(t *testing.T) {
	runToItsEnd(t, "game", "game/42 is cut off, events go on, it comes back with revision 3", `"aggregate":"game/43","revision":6,`, "[42 6 xoxoxo...]")
}
