package printable

import (
	"encoding/json"
	"strings"
	"testing"
)

// S-08
func TestWriter_letsNoHiddenCharacterPass(t *testing.T) {
	for in, want := range map[string]string{
		"plain, übergröße, 日本, 😀\n\x1b[1m": "plain, übergröße, 日本, 😀\n\x1b[1m",
		"a\u009bb\u0085c\x7fd":             `a\u009bb\u0085c\u007fd`,
		"a\u202eb\u2066c\u200fd\u061ce":    `a\u202eb\u2066c\u200fd\u061ce`,
		"a\u2028b":                         `a\u2028b`,
		"a\x9bb\xffc":                      "a\uFFFDb\uFFFDc",
		"":                                 "",
	} {
		var out strings.Builder
		if n, err := (&Writer{Out: &out}).Write([]byte(in)); err != nil || n != len(in) {
			t.Errorf("wrote %d of %d, %v", n, len(in), err)
		}
		if out.String() != want {
			t.Errorf("%q becomes %q, want %q", in, out.String(), want)
		}
	}
	text, err := json.Marshal("a\u009bb\u202ec")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := (&Writer{Out: &out}).Write(text); err != nil {
		t.Fatal(err)
	}
	var back string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || back != "a\u009bb\u202ec" {
		t.Errorf("%s reads as %q, %v", out.String(), back, err)
	}
}
