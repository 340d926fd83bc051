package strictjson

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// checkAgainstStandard checks what holds for every body: nothing that is not JSON gets through, and
// a body that gets through is the same after encoding/json has read and written its text.
func checkAgainstStandard(t *testing.T, body []byte) {
	t.Helper()
	if Check(body) != nil {
		return
	}
	if !json.Valid(body) || !utf8.Valid(body) {
		t.Fatalf("%q was taken and is not JSON in UTF-8", body)
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		t.Fatalf("%q was taken and cannot be decoded: %v", body, err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(`\u0000`)) && !bytes.Contains(body, []byte(`\\u0000`)) {
		t.Fatalf("%q was taken and holds NUL: %s", body, text)
	}
	// A replacement character comes only from one in the body.
	if bytes.Contains(text, []byte("\ufffd")) && !bytes.Contains(body, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(body), []byte(`\ufffd`)) {
		t.Fatalf("%q was taken and is altered by decoding: %s", body, text)
	}
}

func TestCheck_leavesWhatIsRightAlone(t *testing.T) {
	for _, body := range []string{
		`{}`, ` [ ] `, `null`, `-1.5e-7`, `"\u00e9\ud83d\ude00\\u0000\"\/"`, "{ \"a_1\" : [ { } , [ ] , true , \"\u2028\" ] , \"b\" : {\"a_1\":0} }\n",
		`9007199254740993`, `[1,2,[3,{"a":{"b":null}}]]`, `"�"`,
	} {
		if wrong := Check([]byte(body)); wrong != nil {
			t.Errorf("Check(%s) is %v, want nil", body, wrong)
		}
	}
}

// What encoding/json refuses, Check must refuse, and whatever comes it must neither panic nor hang.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{`{"track_slug":"go-basics","lesson_slug":"slices"}`, "", `{"a":[1,{"b":"\ud83d\ude00"}]}`, `"\ud800`, `{"a":1,"a":2}`, "[[[", "\xff", `"\u0000"`, ` [ ] `, `-0.0e-1`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		checkAgainstStandard(t, body)
	})
}
