package eventschema_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/eventschema"
)

func read(t *testing.T, schema string) (*eventschema.Schema, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(path, []byte(schema), 0o600); err != nil {
		t.Fatal(err)
	}
	return eventschema.Read(path)
}

const paid = `{
	"$id": "https://shop.example/events/paid.json",
	"type": "object", "required": ["order"], "additionalProperties": false,
	"properties": {
		"order": {"$ref": "#/$defs/id"},
		"amount": {"type": "number", "minimum": 0, "multipleOf": 0.01},
		"state": {"enum": ["open", "done"]},
		"mail": {"pattern": "^[^@]+@[^@]+$"},
		"tags": {"type": "array", "maxItems": 2, "uniqueItems": true, "items": {"type": "string"}}
	},
	"$defs": {"id": {"type": "integer", "minimum": 1}}
}`

func TestCheck_saysWhereAPayloadDoesNotFit(t *testing.T) {
	schema, err := read(t, paid)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ payload, want string }{
		{`{"order": 9007199254740993, "amount": 12.50, "state": "open", "tags": ["a", "b"]}`, ""},
		{`{}`, `the top: missing property 'order'`},
		{`{"order": "secret-7"}`, `at "/order": got string, want integer`},
		{`{"order": 0}`, `at "/order": minimum fails`},
		{`{"order": 1, "amount": 0.001}`, `at "/amount": multipleOf fails`},
		{`{"order": 1, "amount": 1e400000000000}`, `the payload`},
		{`{"order": 1, "state": "secret-7"}`, `at "/state": enum fails`},
		{`{"order": 1, "mail": "secret-7"}`, `at "/mail": pattern fails`},
		{`{"order": 1, "tags": ["a", 1, "b"]}`, `and 1 more`},
		{`{"order": 1, "` + strings.Repeat("long", 100) + `": 1}`, `not allowed: "longlong`},
		{`null`, `at the top: got null, want object`},
		{`{"order": 1`, `no JSON`},
		{`{"order": 1} {}`, `no JSON`},
		{`<order/>`, `no JSON`},
	} {
		err := schema.Check([]byte(test.payload))
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: got %v, want no error", test.payload, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80s: got %v, want %q", test.payload, err, test.want)
		} else if strings.Contains(err.Error(), "secret-7") || len(err.Error()) > 300 {
			t.Errorf("%.80s: the reason repeats the payload: %v", test.payload, err)
		}
	}
	if err := schema.Check(nil); err == nil || !strings.Contains(err.Error(), "got null") {
		t.Errorf("SQL NULL: got %v", err)
	}
}

func TestRead_fetchesNothing(t *testing.T) {
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		_, _ = w.Write([]byte(`{}`))
	}))
	defer server.Close()
	secret := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(secret, []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{
		`{"$ref": "` + server.URL + `/a.json"}`,
		`{"$schema": "` + server.URL + `/meta.json"}`,
		`{"$id": "` + server.URL + `/b.json", "$ref": "c.json"}`,
		`{"$ref": "file://` + secret + `"}`,
		`{"$ref": "other.json"}`,
	} {
		if _, err := read(t, schema); err == nil || !strings.Contains(err.Error(), "nothing is fetched") {
			t.Errorf("%s: got %v", schema, err)
		}
	}
	select {
	case path := <-asked:
		t.Errorf("%s was fetched", path)
	default:
	}
}

func TestRead_refusesWhatIsNoSchema(t *testing.T) {
	for schema, want := range map[string]string{
		``: "no JSON", `{`: "no JSON", `{"type": "nothing"}`: "no JSON Schema", `[]`: "no JSON Schema", `{"pattern": "("}`: "no JSON Schema",
		`{"$ref": "#/$defs/nowhere"}`: "no JSON Schema",
	} {
		if _, err := read(t, schema); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", schema, err, want)
		}
	}
	if _, err := eventschema.Read(filepath.Join(t.TempDir(), "nowhere.json")); err == nil {
		t.Error("a file that is not there is read")
	}
}

func TestCheck_isSafeForConcurrentUse(t *testing.T) {
	schema, err := read(t, paid)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if err := schema.Check([]byte(`{"order": 1, "amount": 2.50}`)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(b.TempDir(), "schema.json")
	if err := os.WriteFile(path, []byte(paid), 0o600); err != nil {
		b.Fatal(err)
	}
	schema, err := eventschema.Read(path)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := schema.Check([]byte(`{"order": 1, "amount": 2.50, "state": "open"}`)); err != nil {
			b.Fatal(err)
		}
	}
}

// S-344. What a payload costs is bounded, whatever its writer puts in: nine bytes of 1e999999 are fifty milliseconds of a
// processor to a library that counts in fractions, and each value that does not fit is an error of its own to it.
func TestCheck_isBoundedByWhatIsInThePayload(t *testing.T) {
	schema, err := read(t, `{"items": {"type": "integer"}}`)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ payload, want string }{
		"a large exponent":          {`[1e999999]`, "number"},
		"a small one":               {`[1E-999999]`, "number"},
		"many digits":               {"[" + strings.Repeat("1", 100_000) + "]", "number"},
		"many values":               {"[" + strings.Repeat("1,", 200_000) + "1]", "values"},
		"many empty lists":          {"[" + strings.Repeat("[],", 200_000) + "1]", "values"},
		"a number in a text":        {`["1e999999"]`, "got string"},
		"a quote in a text":         {`["\"", 1e999999]`, "number"},
		"a backslash ends a text":   {`["\\", 1e999999]`, "number"},
		"what a service may write":  {`[1, 20, 3e2, 1e308, 12345678901234567890123456789012345678]`, ""},
		"a text with many commas":   {`{"a": "` + strings.Repeat(",", 200_000) + `"}`, ""},
		"a number at the top":       {`1e999999`, "number"},
		"an exponent with its sign": {`[1e+999999]`, "number"},
	} {
		err := schema.Check([]byte(test.payload))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
