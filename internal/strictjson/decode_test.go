package strictjson

import (
	"strings"
	"testing"
	"time"
)

type choice struct {
	reason
	Name   string    `json:"name"`
	Events []string  `json:"events"`
	Since  time.Time `json:"since"`
	Limit  int       `json:"limit"`
	Rate   *int      `json:"rate"`
	DryRun bool      `json:"dry_run"`
}

type reason struct {
	Why string `json:"why" max:"10"`
}

func TestDecode_readsMembersOfEveryKind(t *testing.T) {
	var got choice
	if wrong := Decode([]byte(`{"name": "a", "events": ["x", "y"], "since": "2026-01-31T15:04:05Z", "limit": -3, "rate": 0, "dry_run": true, "why": "because"}`), &got); wrong != nil {
		t.Fatal(wrong)
	}
	if got.Name != "a" || len(got.Events) != 2 || got.Since.Year() != 2026 || got.Limit != -3 || got.Rate == nil || *got.Rate != 0 || !got.DryRun || got.Why != "because" {
		t.Errorf("decoded %+v", got)
	}
}

// S-02
func TestDecode_namesTheMemberThatIsWrong(t *testing.T) {
	for body, want := range map[string]string{
		``:                                  "body: not JSON",
		`[]`:                                "body: must be an object",
		`null`:                              "body: must be an object",
		`{} {}`:                             "body: not JSON",
		`{"dry_run":true,"Dry_Run":false}`:  "body.Dry_Run: unexpected property",
		`{"dry_run":true,"dry_run":false}`:  "body.dry_run: given more than once",
		`{"dry_run":true,"dry_\u0072un":1}`: "body.dry_run: given more than once",
		`{"dryrun":true}`:                   "body.dryrun: unexpected property",
		`{"dry_run":"true"}`:                "body.dry_run: must be true or false",
		`{"dry_run":1}`:                     "body.dry_run: must be true or false",
		`{"dry_run":null}`:                  "body.dry_run: must not be null",
		`{"name":"a\u0000b"}`:               "body.name: contains the character NUL",
		"{\"name\":\"a\xffb\"}":             "body.name: is no valid UTF-8",
		`{"name":"\ud800"}`:                 "body.name: contains a lone surrogate",
		`{"name":7}`:                        "body.name: must be a string",
		`{"name":["a"]}`:                    "body.name: must be a string",
		`{"name":"` + strings.Repeat("x", 257) + `"}`:         "body.name: is longer than 256 bytes",
		`{"why":"12345678901"}`:                               "body.why: is longer than 10 bytes",
		`{"limit":99999999999999999999}`:                      "body.limit: is a number out of range",
		`{"limit":1e400}`:                                     "body.limit: is a number out of range",
		`{"limit":1.5}`:                                       "body.limit: is a number out of range, or not a whole one",
		`{"limit":"7"}`:                                       "body.limit: must be a whole number",
		`{"rate":99999999999999999999}`:                       "body.rate: is a number out of range",
		`{"since":"yesterday"}`:                               "body.since: must be a time",
		`{"since":5}`:                                         "body.since: must be a time",
		`{"since":"0001-01-01T00:00:00Z"}`:                    "body.since: is a time out of range",
		`{"events":"x"}`:                                      "body.events: must be a list of strings",
		`{"events":[1]}`:                                      "body.events: must be a list of strings",
		`{"events":["a","` + strings.Repeat("x", 257) + `"]}`: "body.events: [1] is longer than 256 bytes",
	} {
		got := Decode([]byte(body), new(choice))
		if got == nil || !strings.HasPrefix(got.Error(), want) {
			t.Errorf("Decode(%.60s) is %v, want %s", body, got, want)
		}
	}
}
