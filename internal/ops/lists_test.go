package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/relay"
)

// pages reads a list to its end and returns what name finds in each element.
func pages(t *testing.T, c *counter, path, list, next, name string, between func()) (found []string) {
	t.Helper()
	for place := ""; ; {
		query := path
		if place != "" {
			query += "&" + next + "=" + place
		}
		code, answer := c.request(t, "GET", query, "")
		if code != http.StatusOK {
			t.Fatalf("%s: %d %v", query, code, answer)
		}
		for _, element := range answer[list].([]any) {
			found = append(found, fmt.Sprint(element.(map[string]any)[name]))
		}
		key := "next"
		if next != "after" {
			key = next
		}
		at, more := answer[key]
		if !more {
			return found
		}
		if place = fmt.Sprint(at); next != "after" {
			place = fmt.Sprintf("%.0f", at)
		}
		if between != nil {
			between()
		}
	}
}

// S-430: pages of dead letters that all stand at the same position, while others are paid and recorded.
func TestV1_pagesOfOwedHaveEachDeliveryOnce(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	c.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key)
		SELECT 'walpost', 'crowd', 'lessons', 'd' || lpad(n::text, 5, '0'), 'o', CASE WHEN n % 3 = 0 THEN 'waiting' ELSE 'dead' END, 1, '0/100', 0, 'lesson.completed', 'k'
		FROM generate_series(1, 250) n`)
	deleted := 0
	got := pages(t, c, "/v1/owed?subscriber=crowd&limit=20", "owed", "after", "event", func() {
		deleted++ // of those that were read already
		c.Exec(`DELETE FROM walpost.owed WHERE event_id = 'd' || lpad($1::text, 5, '0')`, fmt.Sprint(deleted))
	})
	if len(got) != 250 || !slices.IsSorted(got) || got[0] != "d00001" || got[249] != "d00250" {
		t.Errorf("%d deliveries, from %s on, want d00001 to d00250", len(got), got[0])
	}
	if dead := pages(t, c, "/v1/owed?subscriber=crowd&state=dead&limit=7", "owed", "after", "state", nil); slices.Contains(dead, string(lane.StateWaiting)) || len(dead) < 150 {
		t.Errorf("pages of dead letters are %v", dead)
	}
	all := pages(t, c, "/v1/owed?limit=100", "owed", "after", "event", nil)
	if want := 250 - deleted + 3; len(all) != want {
		t.Errorf("%d deliveries of all subscribers, want %d", len(all), want)
	}
	for _, wrong := range []string{"x", "e30", "eyJjIjoieCJ9", "W10"} { // {}, {"c":"x"}, []
		if code, answer := c.request(t, "GET", "/v1/owed?after="+wrong, ""); code != http.StatusBadRequest {
			t.Errorf("a place that no page has said, %s: %d %v", wrong, code, answer)
		}
	}
}

func TestV1_pagesOfEventsHaveEachRowOnce(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	c.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, published_at)
		SELECT 'p' || n, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 'k', '{}', now() FROM generate_series(1, 50) n`)
	got := pages(t, c, "/v1/events?source=lessons&limit=7", "events", "after", "event", func() {
		c.Exec(`DELETE FROM outbox WHERE event_id IN ('e1', 'p1')`) // retention
	})
	if len(got) != 53 && len(got) != 54 || got[0] != "e1" || got[len(got)-1] != "p50" {
		t.Errorf("%d rows: %v", len(got), got)
	}
	if even := pages(t, c, "/v1/events?source=lessons&type=even&limit=10", "events", "after", "type", nil); len(even) != 25 || slices.Contains(even, "odd") {
		t.Errorf("rows of a type: %v", even)
	}
	for query, says := range map[string]string{
		"": "source: it must be given", "?source=other": "there is no", "?source=lessons&after=x": "after", "?source=lessons&after=W10": "after",
		"?source=lessons&limit=0": "limit", "?source=lessons&why=x": "no such filter",
	} {
		if code, answer := c.request(t, "GET", "/v1/events"+query, ""); code != http.StatusBadRequest || !strings.Contains(fmt.Sprint(answer["detail"]), says) {
			t.Errorf("/v1/events%s: %d %v, want %s", query, code, answer, says)
		}
	}
}

func TestV1_tellsWhatWasDoneAndRepaired(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	c.Exec(`INSERT INTO walpost.audit (slot, who, action, what, why) SELECT 'walpost', 'host/7', a, '{"rows": 3}', 'because'
		FROM unnest(ARRAY['repair', 'pause', 'rename', 'pause', 'repair', 'discard']) a`)
	c.Exec(`INSERT INTO walpost.audit (slot, who, action) VALUES ('another', 'x', 'repair')`)
	for path, want := range map[string]string{
		"/v1/audit?limit=4":              "discard repair pause rename pause repair",
		"/v1/audit?action=pause&limit=1": "pause pause",
		"/v1/repairs?limit=1":            "repair repair",
		"/v1/slot/history?limit=2":       "repair rename repair",
	} {
		if got := strings.Join(pages(t, c, path, "notes", "before", "action", nil), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if code, answer := c.request(t, "GET", "/v1/slot", ""); code != http.StatusOK || answer["recorded_lsn"] != "0/1000" || answer["system_id"] != "7" || answer["exists"] != false {
		t.Errorf("/v1/slot: %d %v", code, answer)
	}
	for _, path := range []string{"/v1/audit?before=0", "/v1/audit?before=x", "/v1/audit?limit=1001", "/v1/repairs?action=pause", "/v1/audit?x=1"} {
		if code, answer := c.request(t, "GET", path, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %v", path, code, answer)
		}
	}
}

func TestV1_tellsWhatTheDoctorAndTheTablesSay(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	for _, path := range []string{"/v1/doctor", "/v1/sources"} {
		if code, _ := c.request(t, "GET", path, ""); code != http.StatusInternalServerError {
			t.Errorf("%s of a process that has none: %d", path, code)
		}
	}
	c.server.options.Doctor = func() doctor.Said {
		return doctor.Said{At: time.Unix(1e9, 0).UTC(), Findings: []doctor.Finding{{Check: "wal-level", Level: doctor.Problem}}}
	}
	c.server.options.Sources = func(context.Context) ([]doctor.SourceReport, error) {
		return []doctor.SourceReport{{Name: "lessons", Table: "public.outbox"}}, nil
	}
	if code, answer := c.request(t, "GET", "/v1/doctor", ""); code != http.StatusOK || !strings.Contains(fmt.Sprint(answer), "wal-level") {
		t.Errorf("/v1/doctor: %d %v", code, answer)
	}
	if code, answer := c.request(t, "GET", "/v1/sources", ""); code != http.StatusOK || !strings.Contains(fmt.Sprint(answer), "public.outbox") {
		t.Errorf("/v1/sources: %d %v", code, answer)
	}
}

// S-431: a request to a standby for what only the leader knows is sent there, or answered with the reason why not.
func TestV1_aStandbySendsToTheLeader(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	askStandby := func(path string) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8081"+path, nil)
		recorder := httptest.NewRecorder()
		c.server.ServeHTTP(recorder, request)
		return recorder
	}
	c.Exec(`INSERT INTO walpost.leader (slot, holder, term, address) VALUES ('walpost', 'host/7', 3, '10.0.0.7:8081')`)
	if got := askStandby("/v1/progress"); got.Code != http.StatusOK {
		t.Errorf("one that streams answers %d %s", got.Code, got.Body)
	}
	c.server.options.Relay.(*standing).progress.State = relay.Waiting
	for _, path := range []string{"/v1/progress", "/v1/attempts?event=e1", "/v1/attempts?follow=true&limit=3"} {
		got := askStandby(path)
		if want := "http://10.0.0.7:8081" + path; got.Code != http.StatusTemporaryRedirect || got.Header().Get("Location") != want {
			t.Errorf("%s: %d to %s, want a redirect to %s", path, got.Code, got.Header().Get("Location"), want)
		}
	}
	if got := askStandby("/progress"); got.Code != http.StatusOK {
		t.Errorf("/progress is of the process itself: %d", got.Code)
	}
	if got := askStandby("/v1/attempts?nonsense=1"); got.Code != http.StatusBadRequest {
		t.Errorf("what cannot be meant is refused here: %d", got.Code)
	}
	for _, step := range [][2]string{
		{`UPDATE walpost.leader SET address = '127.0.0.1:8081'`, "loopback of its own machine"}, // ours would be asked again, for ever
		{`UPDATE walpost.leader SET address = ''`, "socket"},
		{`UPDATE walpost.leader SET holder = ''`, "no relay leads"},
	} {
		change, says := step[0], step[1]
		c.Exec(change)
		if got := askStandby("/v1/progress"); got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), says) || got.Header().Get("Retry-After") == "" {
			t.Errorf("after %s: %d %s", change, got.Code, got.Body)
		}
	}
}

func TestFollow_servesEventsToABrowser(t *testing.T) {
	of := stuck() // remembers 10
	server := runServer(t, of, 20*time.Millisecond)
	for n := range 3 {
		attempt(of, "analytics", fmt.Sprintf("e%d", n), lane.Delivered, "")
	}
	open := func(last string) (*http.Response, func(prefix string) string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.url+"/v1/attempts?limit=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "text/event-stream")
		if last != "" {
			request.Header.Set("Last-Event-ID", last)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		buffer := make([]byte, 1)
		line := func() string {
			var b bytes.Buffer
			for {
				if _, err := response.Body.Read(buffer); err != nil {
					t.Fatalf("the stream ended: %v", err)
				}
				if buffer[0] == '\n' {
					return b.String()
				}
				b.Write(buffer)
			}
		}
		return response, func(prefix string) string {
			for {
				if text, ok := strings.CutPrefix(line(), prefix); ok {
					return text
				}
			}
		}
	}
	response, find := open("")
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("the type is %s", got)
	}
	id := find("id: ")
	if kind, data := find("event: "), find("data: "); kind != "attempt" || !json.Valid([]byte(data)) || !strings.Contains(data, `"e2"`) {
		t.Errorf("the last attempt comes as %s: %s", kind, data)
	}
	if got := find(": after "); got != id {
		t.Errorf("the sign of life says %s, want %s", got, id)
	}
	attempt(of, "analytics", "e3", lane.Delivered, "")
	if data := find("data: "); !strings.Contains(data, `"e3"`) {
		t.Errorf("then comes %s", data)
	}
	// A browser that comes back has nothing twice and misses nothing.
	_, find = open(id)
	if data := find("data: "); !strings.Contains(data, `"e3"`) {
		t.Errorf("behind %s comes %s", id, data)
	}
	for n := range 25 {
		attempt(of, "analytics", fmt.Sprintf("late%d", n), lane.Delivered, "")
	}
	_, find = open(id)
	if kind, data := find("event: "), find("data: "); kind != "missed" || !strings.Contains(data, `"missed":`) {
		t.Errorf("what was missed comes as %s: %s", kind, data)
	}
}

// The description has every route, and each answer is as it says.
func TestOpenAPI_describesWhatTheRoutesAnswer(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	code, document := c.request(t, "GET", "/openapi.json", "")
	if code != http.StatusOK || document["openapi"] != "3.1.0" {
		t.Fatalf("%d %v", code, document["openapi"])
	}
	paths := document["paths"].(map[string]any)
	described := 0
	for _, operations := range paths {
		described += len(operations.(map[string]any))
	}
	if described != 23 {
		t.Errorf("%d operations are described", described)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	c.server.options.Doctor = func() doctor.Said {
		return doctor.Said{Findings: []doctor.Finding{{Check: "wal-level", Level: doctor.Problem, Fix: &doctor.Fix{Restart: true}}}}
	}
	c.server.options.Sources = func(context.Context) ([]doctor.SourceReport, error) {
		return []doctor.SourceReport{{Name: "lessons"}}, nil
	}
	c.Exec(`INSERT INTO walpost.audit (slot, who, action) VALUES ('walpost', 'x', 'repair')`)
	c.Exec(`INSERT INTO walpost.leader (slot, holder, term) VALUES ('walpost', 'host/7', 3)`)
	attempt(c.server.options.Relay.(*standing), "analytics", "e1", lane.Failed, "503")
	for path, described := range map[string]string{
		"/v1/status": "", "/v1/progress": "", "/v1/subscribers": "", "/v1/owed?limit=1": "", "/v1/owed/e1": "/v1/owed/{event}", "/v1/events?source=lessons&limit=1": "",
		"/v1/events/e1": "/v1/events/{event}", "/v1/attempts": "", "/v1/replays": "", "/v1/audit": "", "/v1/slot": "", "/v1/slot/history": "", "/v1/repairs": "",
		"/v1/doctor": "", "/v1/sources": "",
	} {
		plain, _, _ := strings.Cut(path, "?")
		if described == "" {
			described = plain
		}
		operation := paths[described].(map[string]any)["get"].(map[string]any)
		schema, err := compiler.Compile("openapi.json#/paths/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(described) +
			"/get/responses/200/content/application~1json/schema")
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		code, answer := c.request(t, "GET", path, "")
		if code != http.StatusOK {
			t.Errorf("%s: %d %v", path, code, answer)
			continue
		}
		if err := schema.Validate(answer); err != nil {
			t.Errorf("%s answers otherwise than it says: %v", path, err)
		}
		// A filter that is described is known, and no other.
		if _, query, ok := strings.Cut(path, "?"); ok {
			for _, name := range regexp.MustCompile(`(\w+)=`).FindAllStringSubmatch(query, -1) {
				if !slices.ContainsFunc(operation["parameters"].([]any), func(p any) bool { return p.(map[string]any)["name"] == name[1] }) {
					t.Errorf("%s: %s is not described", path, name[1])
				}
			}
		}
	}
	for path, operations := range paths {
		for _, operation := range operations.(map[string]any) {
			for _, p := range parametersOf(operation) {
				if p["in"] == "query" && p["name"] != "source" && path != "/v1/attempts" {
					code, answer := c.request(t, "GET", path+"?source=lessons&"+fmt.Sprint(p["name"])+"=%00", "")
					if code != http.StatusBadRequest || strings.Contains(fmt.Sprint(answer["detail"]), fmt.Sprint(p["name"])+": there is no such filter") {
						t.Errorf("%s does not know %v: %d %v", path, p["name"], code, answer)
					}
				}
			}
		}
	}
}

func parametersOf(operation any) (all []map[string]any) {
	list, _ := operation.(map[string]any)["parameters"].([]any)
	for _, p := range list {
		all = append(all, p.(map[string]any))
	}
	return all
}

func TestServer_answersUnknownPathsWithProblems(t *testing.T) {
	server := serve("127.0.0.1:8081", "", stuck())
	for path, want := range map[string]int{"/nonsense": http.StatusNotFound, "/v1/owed/": http.StatusNotFound} {
		got := get(server, path, "")
		if got.Code != want || got.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s %s", path, got.Code, got.Header().Get("Content-Type"), got.Body)
		}
	}
	request := httptest.NewRequest(http.MethodDelete, "http://localhost:8081/v1/owed", nil)
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusMethodNotAllowed || recorder.Header().Get("Content-Type") != "application/problem+json" || recorder.Header().Get("Allow") == "" {
		t.Errorf("DELETE: %d %s, Allow %s", recorder.Code, recorder.Header().Get("Content-Type"), recorder.Header().Get("Allow"))
	}
}
