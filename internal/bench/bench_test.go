package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestSpread_isTheMedianBetweenLeastAndGreatest(t *testing.T) {
	tests := []struct {
		values []float64
		want   Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1, 2}, Spread{2, 1, 9}},
		{[]float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	}
	for _, test := range tests {
		if got := *spread(test.values); got != test.want {
			t.Errorf("spread(%v) = %v, want %v", test.values, got, test.want)
		}
	}
}

func newLab() *lab { return &lab{current: "case", report: &Report{}} }

func TestCompare_dividesTurnByTurn(t *testing.T) {
	l := newLab()
	// The machine was twice as fast in the second turn: that must not show.
	ours := []sample{{rate: 100}, {rate: 200}, {rate: 90}}
	other := []sample{{rate: 50}, {rate: 100}, {rate: 45}}
	l.compare(bar{what: "speed", unit: "events/s", baseline: "the other", bar: 2, aim: 3}, ours, other, rateOf)
	row := l.report.Rows[0]
	if got, want := *row.Value, (Spread{2, 2, 2}); got != want {
		t.Errorf("ratio %v, want %v", got, want)
	}
	if got, want := row.Ours.Median, 100.0; got != want {
		t.Errorf("ours %v, want %v", got, want)
	}
}

func TestRow_holdsOnTheRightSideOfItsBar(t *testing.T) {
	tests := []struct {
		name  string
		bar   bar
		value float64
		want  bool
	}{
		{"at least, above", bar{bar: 2}, 3, true},
		{"at least, on it", bar{bar: 2}, 2, true},
		{"at least, below", bar{bar: 2}, 1.9, false},
		{"at most, below", bar{bar: 2, atMost: true}, 1, true},
		{"at most, on it", bar{bar: 2, atMost: true}, 2, true},
		{"at most, above", bar{bar: 2, atMost: true}, 2.1, false},
		{"nothing at all, and there is something", bar{atMost: true}, 1, false},
	}
	for _, test := range tests {
		l := newLab()
		l.absolute(test.bar, "", test.value)
		if got := l.report.Rows[0].Holds; got != test.want {
			t.Errorf("%s: holds %t, want %t", test.name, got, test.want)
		}
	}
}

// What was not measured must not look fine, in none of the forms.
func TestReport_saysWhatWasNotRunAndWhy(t *testing.T) {
	l := newLab()
	l.notRun("the other is not installed", bar{what: "speed", baseline: "the other", bar: 1})
	var text, markdown, encoded bytes.Buffer
	if err := errors.Join(l.report.WriteText(&text, func(w io.Writer, rows [][]string) { fmt.Fprintln(w, rows) }), l.report.WriteMarkdown(&markdown), json.NewEncoder(&encoded).Encode(l.report)); err != nil {
		t.Fatal(err)
	}
	for form, got := range map[string]string{"text": text.String(), "Markdown": markdown.String()} {
		if !strings.Contains(got, "not run: the other is not installed") || strings.Contains(got, "holds") {
			t.Errorf("%s says %s, want why it was not run and no verdict", form, got)
		}
	}
	if got := encoded.String(); !strings.Contains(got, `"not_run":"the other is not installed"`) || !strings.Contains(got, `"holds":false`) {
		t.Errorf("JSON says %s", got)
	}
}

func TestReport_printsBarAimAndVerdictInEachRow(t *testing.T) {
	l := newLab()
	l.compare(bar{what: "speed", unit: "events/s", baseline: "the other", bar: 2, aim: 3}, []sample{{rate: 25_000}}, []sample{{rate: 10_000}}, rateOf)
	var got strings.Builder
	if err := l.report.WriteMarkdown(&got); err != nil {
		t.Fatal(err)
	}
	const want = "| case | speed | 25k events/s | the other: 10k | 2.5× (2.5 to 2.5) | ≥ 2×, holds | ≥ 3× |"
	if !strings.Contains(got.String(), want) {
		t.Errorf("the table is\n%s\nwant the line\n%s", got.String(), want)
	}
}

func TestCommits_countAHandlerThatWasFasterThanTheCommitAsNoTime(t *testing.T) {
	c := newCommits()
	at := time.Unix(100, 0)
	c.noteCommit("early", at)
	c.noteCommit("late", at)
	got, err := c.until(map[string]int64{"early": at.Add(-time.Millisecond).UnixNano(), "late": at.Add(time.Second).UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	if s := sampleOf(got); len(got) != 2 || s.p50 != 0 || got[1] != time.Second {
		t.Errorf("waits %v", got)
	}
	if _, err := c.until(map[string]int64{"early": 1}); err == nil || !strings.Contains(err.Error(), "late") {
		t.Errorf("an event that was never handled: %v, want an error with its name", err)
	}
}

func deliveries(ids ...string) []subscriber.Delivery {
	var all []subscriber.Delivery
	for _, id := range ids {
		all = append(all, subscriber.Delivery{Event: &event.Event{ID: id}})
	}
	return all
}

func TestWatcher_tellsOnceWhenEverythingIsHandled(t *testing.T) {
	var out bytes.Buffer
	sub := NewWatcher(3, false, &out).Watch(Noop("noop")).(subscriber.BatchSubscriber)
	ctx := context.Background()
	if err := errors.Join(sub.Handle(ctx, deliveries("a")[0]), sub.HandleBatch(ctx, deliveries("b"))); err != nil {
		t.Fatal(err)
	}
	if out.Len() != 0 {
		t.Errorf("after two of three it said %s", out.String())
	}
	if err := errors.Join(sub.HandleBatch(ctx, deliveries("c", "d")), sub.Handle(ctx, deliveries("e")[0])); err != nil {
		t.Fatal(err)
	}
	var line finished
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Subscriber != "noop" || line.At == 0 {
		t.Errorf("it said %q (%v), want one line of noop", out.String(), err)
	}
}

func TestWatcher_doesNotCountWhatFailed(t *testing.T) {
	var out bytes.Buffer
	sub := NewWatcher(1, false, &out).Watch(Down{Noop("down")}).(subscriber.BatchSubscriber)
	if sub.Handle(context.Background(), deliveries("a")[0]) == nil || sub.HandleBatch(context.Background(), deliveries("a", "b")) == nil {
		t.Error("a subscriber that is down took an event")
	}
	if out.Len() != 0 {
		t.Errorf("it said %s", out.String())
	}
}

func TestWatcher_stampsTheFirstCallOfEachEventAndTellsAtTheEnd(t *testing.T) {
	var out bytes.Buffer
	w := NewWatcher(0, true, &out)
	sub := w.Watch(Noop("noop")).(subscriber.BatchSubscriber)
	if err := sub.HandleBatch(context.Background(), deliveries("a", "b")); err != nil {
		t.Fatal(err)
	}
	if out.Len() != 0 {
		t.Errorf("before the end it said %s", out.String())
	}
	w.Close()
	var line finished
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Called["a"] == 0 || line.Called["b"] == 0 {
		t.Errorf("it said %q (%v), want when a and b were handled", out.String(), err)
	}
}

func TestReceive_takesWhatIsPosted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	says, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Receive(ctx, out) }()
	var url string
	if _, err := fmt.Fscanf(says, "receiving at %s\n", &url); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := Post(ctx, url, 300, 250, &said); err != nil {
		t.Fatal(err)
	}
	var line finished
	if err := json.Unmarshal(said.Bytes(), &line); err != nil || line.Took <= 0 {
		t.Errorf("the loop said %q (%v), want how long it took", said.String(), err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("at the end: %v", err)
	}
}

func TestReadHead_findsWhereTheRequestEnds(t *testing.T) {
	tests := []struct {
		name, request string
		want          int
		err           string
	}{
		{"as Go writes it", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 2, ""},
		{"lower case, behind others", "POST / HTTP/1.1\r\ncontent-type: a\r\ncontent-length: 2\r\nx: 3\r\n\r\n{}", 2, ""},
		{"no length", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 0, "without a content length"},
		{"no number", "POST / HTTP/1.1\r\nContent-Length: two\r\n\r\n", 0, `"two"`},
		{"broken off", "POST / HTTP/1.1\r\nContent-Le", 0, "EOF"},
	}
	for _, test := range tests {
		got, err := readHead(bufio.NewReader(strings.NewReader(test.request)))
		if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %d, %v; want %d, %q", test.name, got, err, test.want, test.err)
		}
	}
}

// one takes events one by one; a wrapper that took batches would change how it is called.
type one struct{ subscriber.Subscriber }

func TestWatcher_leavesASubscriberWithoutBatchesWithoutBatches(t *testing.T) {
	if _, ok := NewWatcher(1, false, &bytes.Buffer{}).Watch(one{Noop("one")}).(subscriber.BatchSubscriber); ok {
		t.Error("it takes batches")
	}
}

func TestWatcher_leavesAPipelineAPipelineAndCountsWhatItReports(t *testing.T) {
	var out bytes.Buffer
	sub := NewWatcher(2, false, &out).Watch(subscribertest.Recording().InPipeline()).(subscriber.Pipeline)
	reported := make(chan error, 2)
	sub.Send(t.Context(), []subscriber.Delivery{subscribertest.LessonCompleted(0), subscribertest.LessonCompleted(1)},
		func(_ int, err error) { reported <- err })
	for range 2 {
		if err := <-reported; err != nil {
			t.Error(err)
		}
	}
	if err := sub.Abort(t.Context()); err != nil {
		t.Error(err)
	}
	if out.Len() == 0 {
		t.Error("nothing was written when two events were handled")
	}
}

func TestCases_haveStepsForEachContestantAndTurn(t *testing.T) {
	o := Options{Turns: 3, Streams: Choice{}.Streams()}
	for _, m := range measures() {
		if got := m.steps(o); got < 1 {
			t.Errorf("case %s has %d steps", m.name, got)
		}
	}
	if got, want := len(Cases()), len(measures()); got != want || got == 0 {
		t.Errorf("%d names for %d cases", got, want)
	}
}

func TestChoice_isWhatWasAskedForAndElseOneOfEach(t *testing.T) {
	tests := []struct {
		name   string
		choice Choice
		want   int
		first  Stream
	}{
		{"nothing", Choice{}, 8, Stream{"tcp", "1", 250, 3}},
		{"a shape", Choice{Shapes: []string{"100"}}, 6, Stream{"tcp", "100", 250, 3}},
		{"a transport", Choice{Transports: []string{"unix"}}, 3, Stream{"unix", "1", 250, 3}},
		{"sizes and a shape", Choice{Payloads: []int{10_000, 200_000}, Shapes: []string{"1"}}, 2, Stream{"tcp", "1", 10_000, 3}},
		{"everything", Choice{Full: true}, 3 * 3 * 2 * 3, Stream{"tcp", "1", 250, 3}},
		{"everything over TLS", Choice{Full: true, Transports: []string{"tls"}}, 3 * 2 * 3, Stream{"tls", "1", 250, 3}},
	}
	for _, test := range tests {
		got := test.choice.Streams()
		if len(got) != test.want || got[0] != test.first {
			t.Errorf("%s: %d streams from %v, want %d from %v", test.name, len(got), got[0], test.want, test.first)
		}
	}
}

func TestStream_hasABarForItsConnectionAndSize(t *testing.T) {
	for _, test := range []struct {
		stream Stream
		what   string
		bar    float64
	}{
		{Stream{"tcp", "1", 250, 3}, "1-row transactions of 250 B, TCP: rate", 1.25},
		{Stream{"tls", "huge", 250, 3}, "one huge transaction of 250 B, TLS: rate", 1.1},
		{Stream{"unix", "100", 250, 3}, "transactions of 100 of 250 B, Unix socket: rate", 0.85},
		{Stream{"unix", "100", 10_000, 3}, "transactions of 100 of 10 kB, Unix socket: rate", 1.1},
		{Stream{"tcp", "100", 200_000, 3}, "transactions of 100 of 200 kB, TCP: rate", 1},
		{Stream{"tcp", "100", 250, 30}, "transactions of 100 of 250 B, TCP, 30 subscribers: rate", 0.9},
		{Stream{"", "1", 250, 3}, "1-row transactions of 250 B: rate", 1.25},
	} {
		if got := test.stream.rateBar(); got.what != test.what || got.bar != test.bar {
			t.Errorf("%+v: %q at %v, want %q at %v", test.stream, got.what, got.bar, test.what, test.bar)
		}
	}
}
