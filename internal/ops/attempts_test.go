package ops

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/relay"
)

// attempt records one of a subscriber.
func attempt(of *standing, subscriber, id string, outcome lane.Outcome, why string) {
	tried := lane.Attempt{
		Event:  &event.Event{Source: "lessons", ID: id, Occurrence: written, Type: "lesson.completed", Key: "k-" + id, Position: event.Position{Epoch: 1, Commit: 8}},
		Number: 1, Outcome: outcome,
	}
	if why != "" {
		tried.Err = errors.New(why)
	}
	of.attempts.Record(subscriber, time.Now(), time.Millisecond, []lane.Attempt{tried})
}

func TestAttempts_areListedAsTheFilterSays(t *testing.T) {
	of := stuck()
	of.open = []string{"billing"}
	attempt(of, "analytics", "e1", lane.Delivered, "")
	attempt(of, "billing", "e1", lane.Failed, "503 from <the receiver>")
	attempt(of, "billing", "e2", lane.Dead, "no such user")
	server := serve("127.0.0.1:8081", "", of)
	for query, want := range map[string]string{
		"":                               "analytics/e1 billing/e1 billing/e2",
		"?limit=1":                       "billing/e2",
		"?limit=0":                       "",
		"?event=e1":                      "analytics/e1 billing/e1",
		"?subscriber=billing&key=k-e1":   "billing/e1",
		"?outcome=dead":                  "billing/e2",
		"?type=other":                    "",
		"?type=lesson.completed&limit=2": "billing/e1 billing/e2",
		"?event=e1&outcome=delivered":    "analytics/e1",
	} {
		var answer admin.Remembered
		got := get(server, "/v1/attempts"+query, "")
		if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil || got.Code != http.StatusOK {
			t.Fatalf("%s: %d %s: %v", query, got.Code, got.Body, err)
		}
		var found []string
		for _, a := range answer.Attempts {
			found = append(found, a.Subscriber+"/"+a.Event)
		}
		if strings.Join(found, " ") != want || answer.Slot != "walpost" || answer.Since.IsZero() {
			t.Errorf("%s: %+v, want %s", query, answer, want)
		}
		if asked := strings.Contains(query, "event="); asked != (len(answer.Open) == 1) {
			t.Errorf("%s: open for %v", query, answer.Open)
		}
	}
	for _, query := range []string{"?outcome=paid", "?limit=-1", "?limit=10001", "?after=7", "?follow=perhaps", "?evnt=e1", "?event=e1&event=e2"} {
		if got := get(server, "/v1/attempts"+query, ""); got.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, got.Code, got.Body)
		}
	}
	public := serve("0.0.0.0:8081", "secret", of)
	for _, path := range []string{"/v1/attempts", "/v1/attempts?follow=true", "/v1/events/e1"} {
		if got := get(public, path, ""); got.Code != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d", path, got.Code)
		}
	}
}

// running serves in front of a relay with short timeouts, and a drain that no test waits for.
type running struct {
	url   string
	stop  context.CancelFunc
	ended chan error
}

func runServer(t *testing.T, of Relay, write time.Duration) *running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := serve("127.0.0.1:0", "", of)
	server.times = times{read: 50 * time.Millisecond, write: write, idle: time.Minute, drain: time.Hour, beat: 20 * time.Millisecond}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{"http://" + listener.Addr().String(), stop, make(chan error, 1)}
	go func() { r.ended <- server.Run(ctx, listener) }()
	t.Cleanup(stop)
	return r
}

// awaitEnd stops the server, which must not wait for a stream.
func (r *running) awaitEnd(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a stop waits for a stream")
	}
	stacks := make([]byte, 1<<20)
	if stacks = stacks[:runtime.Stack(stacks, true)]; strings.Contains(string(stacks), "(*Server).follow") {
		t.Errorf("a stream is left behind:\n%s", stacks)
	}
}

func follow(t *testing.T, url string) *bufio.Scanner {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, response.Status)
	}
	return bufio.NewScanner(response.Body)
}

// next returns the next line that is no sign of life, and how many of those came before it.
func next(t *testing.T, lines *bufio.Scanner) (line admin.Line, beats int) {
	t.Helper()
	for lines.Scan() {
		line = admin.Line{}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("line %s: %v", lines.Text(), err)
		}
		if line.After == 0 {
			return line, beats
		}
		beats++
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return line, beats
}

func TestFollow_goesOnOverTheTimeoutsOfOtherRequests(t *testing.T) {
	of := stuck()
	server := runServer(t, of, 100*time.Millisecond)
	attempt(of, "analytics", "e1", lane.Delivered, "")
	attempt(of, "analytics", "e2", lane.Delivered, "")
	attempt(of, "billing", "e3", lane.Delivered, "")
	lines := follow(t, server.url+"/v1/attempts?follow=true&subscriber=analytics&limit=1")
	first, _ := next(t, lines)
	if first.Attempt == nil || first.Event != "e2" {
		t.Fatalf("the first line is %+v", first)
	}
	for range 15 { // signs of life: three times as long as one may take to write
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"after":`) {
			t.Fatalf("line %s, %v", lines.Text(), lines.Err())
		}
	}
	attempt(of, "billing", "e4", lane.Delivered, "")
	attempt(of, "analytics", "e5", lane.Failed, "503 from <the receiver>")
	if line, _ := next(t, lines); line.Attempt == nil || line.Event != "e5" || line.Error != "503 from <the receiver>" {
		t.Errorf("the next line is %+v", line)
	}
	// Who comes back with the number of a line misses nothing between.
	again := follow(t, fmt.Sprintf("%s/v1/attempts?follow=true&after=%d", server.url, first.Seq))
	for _, want := range []string{"e3", "e4", "e5"} {
		if line, _ := next(t, again); line.Attempt == nil || line.Event != want {
			t.Errorf("after %d comes %+v, want %s", first.Seq, line, want)
		}
	}
	server.awaitEnd(t)
	for lines.Scan() { // what was under way
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream ends with %v, want its end", err)
	}
}

func TestFollow_tellsASlowReaderWhatItMissed(t *testing.T) {
	of := stuck() // remembers 10
	attempt(of, "analytics", "e0", lane.Delivered, "")
	server := runServer(t, of, time.Minute)
	first, _ := next(t, follow(t, server.url+"/v1/attempts?follow=true"))
	for n := range 25 {
		attempt(of, "analytics", fmt.Sprintf("e%d", n+1), lane.Delivered, "")
	}
	late := follow(t, fmt.Sprintf("%s/v1/attempts?follow=true&after=%d", server.url, first.Seq))
	if line, _ := next(t, late); line.Missed != 15 {
		t.Errorf("the first line is %+v, want 15 missed", line)
	}
	if line, _ := next(t, late); line.Attempt == nil || line.Event != "e16" {
		t.Errorf("then comes %+v, want e16", line)
	}
	server.awaitEnd(t)
}

// A reader that stops reading, with megabytes under way to it, keeps neither attempts nor a stop waiting.
func TestFollow_doesNotMakeAStopWaitForWhoDoesNotRead(t *testing.T) {
	of := stuck()
	of.attempts = relay.NewAttempts(10_000, time.Now())
	server := runServer(t, of, time.Hour)
	for range 5 {
		next(t, withOne(t, of, server))
	}
	why := strings.Repeat("x", 500)
	for n := range 10_000 {
		attempt(of, "analytics", fmt.Sprintf("e%d", n), lane.Failed, why)
	}
	server.awaitEnd(t)
}

// withOne follows, and has one attempt to read.
func withOne(t *testing.T, of *standing, server *running) *bufio.Scanner {
	t.Helper()
	attempt(of, "analytics", "first", lane.Delivered, "")
	return follow(t, server.url+"/v1/attempts?follow=true&limit=1")
}

func TestFollow_isForAFewAtOnce(t *testing.T) {
	of := stuck()
	server := runServer(t, of, time.Minute)
	for range maxFollowers {
		withOne(t, of, server)
	}
	response, err := http.Get(server.url + "/v1/attempts?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got, want := response.StatusCode, http.StatusServiceUnavailable; got != want {
		t.Errorf("one too many is answered with %d, want %d", got, want)
	}
	server.awaitEnd(t)
}
