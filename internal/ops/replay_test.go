package ops

import (
	"net/http"
	"strings"
	"testing"
)

func TestV1_replaysAreEstimatedAskedForShownAndCancelled(t *testing.T) {
	c := newCounter(t, "unix:/run/walpost/ops.sock", "")
	code, answer := c.request(t, "POST", "/v1/replays", `{"subscriber": "analytics", "since": "2020-01-01T00:00:00Z", "dry_run": true}`)
	estimate, _ := answer["estimate"].(map[string]any)
	if code != http.StatusOK || estimate["rows"] != 4.0 || estimate["sent"] != 2.0 || answer["replay"] != nil {
		t.Errorf("a dry run answers %d %v; want 4 rows, of which 2 are owed", code, answer)
	}
	code, answer = c.request(t, "POST", "/v1/replays", `{"subscriber": "analytics", "key": "k3", "why": "lost", "who": "ada"}`)
	asked, _ := answer["replay"].(map[string]any)
	if code != http.StatusOK || asked["id"] != 1.0 || asked["state"] != "waiting" || asked["rate"] != 500.0 || !strings.HasPrefix(asked["who"].(string), "ada via ops API") {
		t.Errorf("asking answers %d %v", code, answer)
	}
	code, answer = c.request(t, "GET", "/v1/replays", "")
	if list := answer["replays"].([]any); code != http.StatusOK || len(list) != 1 {
		t.Errorf("the list is %d %v", code, answer)
	}
	if code, answer = c.request(t, "GET", "/v1/replays/1", ""); code != http.StatusOK || answer["key"] != "k3" {
		t.Errorf("the replay is %d %v", code, answer)
	}
	if code, answer = c.request(t, "POST", "/v1/replays/1/cancel", `{"why": "enough"}`); code != http.StatusOK || answer["state"] != "cancelled" {
		t.Errorf("cancelling answers %d %v", code, answer)
	}
	for _, test := range []struct {
		method, path, body string
		code               int
		detail             string
	}{
		{"POST", "/v1/replays/1/cancel", `{}`, http.StatusConflict, "it is cancelled since"},
		{"POST", "/v1/replays/2/cancel", `{}`, http.StatusNotFound, "there is no replay 2"},
		{"GET", "/v1/replays/one", ``, http.StatusBadRequest, "must be a number"},
		{"GET", "/v1/replays/7", ``, http.StatusNotFound, "there is no replay 7"},
		{"POST", "/v1/replays", `{"subscriber": "analytics", "key": "k3"}`, http.StatusBadRequest, "why must be given"},
		{"POST", "/v1/replays", `{"subscriber": "analytics", "why": "x"}`, http.StatusBadRequest, "at least one of"},
		{"POST", "/v1/replays", `{"subscriber": "analytics", "kye": "k3", "why": "x"}`, http.StatusBadRequest, "kye"},
		{"POST", "/v1/replays", `{"subscriber": "missing", "key": "k3", "why": "x"}`, http.StatusNotFound, "there is no subscriber"},
		{"POST", "/v1/replays", `{"subscriber": "billing", "key": "k3", "why": "x"}`, http.StatusBadRequest, "has left the configuration"},
		{"POST", "/v1/replays", `{"subscriber": "analytics", "source": "nosuch", "why": "x"}`, http.StatusBadRequest, "no source"},
	} {
		code, answer := c.request(t, test.method, test.path, test.body)
		if detail, _ := answer["detail"].(string); code != test.code || !strings.Contains(detail, test.detail) {
			t.Errorf("%s %s %s: %d %q, want %d and %q", test.method, test.path, test.body, code, detail, test.code, test.detail)
		}
	}
}
