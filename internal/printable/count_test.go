package printable

import "testing"

// S-179
func TestCount_isGrammar(t *testing.T) {
	for want, got := range map[string]string{
		"1 event": Count(1, "event"), "0 events": Count(0, "event"), "2 events": Count(2, "event"),
		"1 event is": Count(1, "event", "is"), "3 events are": Count(3, "event", "is"), "2 rows were": Count(2, "row", "was"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
