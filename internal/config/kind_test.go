package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func TestParse_takesDefaultsOfTheKindUnderWhatTheFileSays(t *testing.T) {
	const file = `
subscribers:
  - {name: a, kind: sending}
  - &b {name: b, kind: sending, standstill: 3s, url: http://b, allow_private: true}
  - {<<: *b, name: c, url: http://c}
  - {name: analytics}
`
	got, err := parse(t, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c, d := got.flow.Subscribers[0], got.flow.Subscribers[1], got.flow.Subscribers[2], got.flow.Subscribers[3]
	if a.Standstill.String() != "10s" || b.Standstill.String() != "3s" || c.Standstill.String() != "3s" || d.Standstill.String() != "1s" {
		t.Errorf("standstill %s, %s, %s, %s", a.Standstill, b.Standstill, c.Standstill, d.Standstill)
	}
	if sent(b).URL != "http://b" || sent(c).URL != "http://c" || !sent(c).AllowPrivate || d.Options != nil {
		t.Errorf("options %+v, %+v, %+v", sent(b), sent(c), d.Options)
	}
}

func TestParse_refusesAnUnknownKeyOfAKindWithItsLine(t *testing.T) {
	_, err := parse(t, "subscribers:\n  - name: a\n    kind: sending\n    sasl: {pasword: hush}\n", nil)
	wantProblems(t, err, `walpost.yaml:4:12: unknown field "pasword"`)
	_, err = parse(t, "subscribers:\n  - name: a\n    kind: sending\n    utl: x\n", nil)
	wantProblems(t, err, `walpost.yaml:4:5: unknown field "utl"`)
	_, err = parse(t, "subscribers:\n  - 5\n", nil)
	wantProblems(t, err, "walpost.yaml:2:")
}

// What a command does not use it does not need: a status asks for no secret of a destination.
func TestParse_leavesOutWhatIsNotKnownForACommandThatDeliversNothing(t *testing.T) {
	const file = `
subscribers:
  - {name: a, kind: sending, url: "${URL}", secret: [x, "${GONE}"], sasl: {password: "${GONE}"}, headers: {A: {file: gone}}}
`
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"WALPOST_CONFIG": path, "URL": "http://a"}
	var cli grammar
	parser, err := NewParser(&cli, lookupIn(env), testKinds(), kong.Name("walpost"))
	if err != nil {
		t.Fatal(err)
	}
	parser.Delivers = func(string) bool { return false }
	if _, err := parser.Parse([]string{"relay"}); err != nil {
		t.Fatal(err)
	}
	if got := sent(parser.Flow.Subscribers[0]); got.URL != "http://a" || got.Secret != nil || got.SASL.Password != "" || len(got.Headers) > 0 {
		t.Errorf("options %+v", got)
	}
	_, err = parse(t, file, nil)
	if err == nil || !strings.Contains(err.Error(), "GONE is not set") || !strings.Contains(err.Error(), "URL is not set") {
		t.Errorf("a command that delivers takes it: %v", err)
	}
}

func TestParse_hasInFlightForKindsThatReportDeliveryByDelivery(t *testing.T) {
	got, err := parse(t, "subscribers:\n  - {name: a, kind: sending}\n  - {name: b, kind: sending, in_flight: 50}\n  - {name: c, kind: recording}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Count{10_000, 50, 0} {
		if s := got.flow.Subscribers[i]; s.InFlight != want {
			t.Errorf("%s: in_flight %d, want %d", s.Name, s.InFlight, want)
		}
	}
	_, err = parse(t, "subscribers:\n  - name: c\n    kind: recording\n    in_flight: 5\n", nil)
	wantProblems(t, err, `walpost.yaml:4: subscriber "c": in_flight: kind recording has no such key; these have: sending`)
	_, err = parse(t, "subscribers:\n  - {name: a, kind: sending, in_flight: 0}\n", nil)
	wantProblems(t, err, `walpost.yaml:2: subscriber "a": in_flight: must be above 0`)
}
