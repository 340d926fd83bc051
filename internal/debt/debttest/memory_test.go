package debttest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

func TestMemory_keepsTheContract(t *testing.T) {
	debttest.Run(t, func(*testing.T, []*event.Event) debttest.Debt { return debttest.NewMemory() })
}

func TestMemory_failsWhenToldTo(t *testing.T) {
	m, e := debttest.NewMemory(), &event.Event{ID: "e"}
	refused, again := errors.New("refused"), errors.New("refused again")
	m.FailNext(refused, again)
	for _, want := range []error{refused, again, nil} {
		if _, got := m.Record(t.Context(), "sub", []lane.Owed{{Event: e}}); !errors.Is(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got := len(m.Owed("sub", lane.StateWaiting)); (got == 1) != (want == nil) {
			t.Errorf("%d deliveries after %v", got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Dead(ctx, "sub", lane.Owed{Event: e}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
}

func TestMemory_tellsWhatPeopleAndPaidHaveDone(t *testing.T) {
	m, e := debttest.NewMemory(), &event.Event{ID: "e", Row: "1", Position: event.Position{Commit: 8}}
	for _, subscriber := range []string{"a", "b"} {
		if _, err := m.Record(t.Context(), subscriber, []lane.Owed{{Event: e}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, subscriber := range []string{"a", "b"} {
		if err := m.Paid(t.Context(), subscriber, []lane.Paid{{Event: e, Attempts: 2}}, event.Position{Commit: 16}); err != nil {
			t.Fatal(err)
		}
	}
	if _, marked := m.Marked(e); marked {
		t.Error("marked by a payment")
	}
	if got, want := m.Secured("a"), (event.Position{Commit: 16}); got != want {
		t.Errorf("secured: got %v, want %v", got, want)
	}
	m.Pause("a", true)
	if look, err := m.Changes(t.Context(), "a"); err != nil || !look.Paused {
		t.Errorf("got %+v, %v, want it paused", look, err)
	}
}
