package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/relay"
)

const (
	// maxAttempts is all that a relay remembers.
	maxAttempts = 10_000
	// maxFollowers bounds the goroutines and connections that streams hold.
	maxFollowers = 32
	// lastWrite is how long a stop waits for a stream that no one reads.
	lastWrite = 100 * time.Millisecond
)

// attemptsQuery is the query of GET /v1/attempts.
type attemptsQuery struct {
	filter relay.AttemptFilter
	limit  int
	follow bool
	events bool   // server-sent events in place of JSON lines
	after  uint64 // 0 begins with the last ones
}

func attemptsQueryOf(r *http.Request) (attemptsQuery, error) {
	q := attemptsQuery{limit: defaultLimit}
	values, err := queryOf(r)
	if err != nil {
		return q, err
	}
	for name, all := range values {
		value := all[0]
		var err error
		switch name {
		case "event":
			q.filter.Event = value
		case "subscriber":
			q.filter.Subscriber = value
		case "type":
			q.filter.Type = value
		case "key":
			q.filter.Key = value
		case "outcome":
			q.filter.Outcome = lane.Outcome(value)
			if !slices.Contains([]lane.Outcome{"", lane.Delivered, lane.Failed, lane.Dead}, q.filter.Outcome) {
				err = fmt.Errorf("it must be %s, %s or %s", lane.Delivered, lane.Failed, lane.Dead)
			}
		case "limit":
			q.limit, err = strconv.Atoi(value)
			if err != nil || q.limit < 0 || q.limit > maxAttempts {
				err = fmt.Errorf("it must be a number from 0 to %d", maxAttempts)
			}
		case "follow":
			q.follow, err = strconv.ParseBool(value)
		case "after":
			q.after, err = strconv.ParseUint(value, 10, 64)
		default:
			err = errors.New("there is no such filter")
		}
		if err != nil {
			return q, debt.Refused(fmt.Sprintf("%s: %v", name, err))
		}
	}
	// A browser's EventSource knows of no query: it asks for events, and goes on behind the last one that it has.
	q.events = wantsEvents(r)
	q.follow = q.follow || q.events
	if last := r.Header.Get("Last-Event-Id"); last != "" && q.events {
		if q.after, err = strconv.ParseUint(last, 10, 64); err != nil {
			return q, debt.Refused("header Last-Event-ID: it must be the seq of an attempt")
		}
	}
	if q.after != 0 && !q.follow {
		return q, debt.Refused("after: it is for follow=true")
	}
	return q, nil
}

// attempts answers with what the relay remembers, or with a stream.
func (s *Server) attempts(w http.ResponseWriter, r *http.Request) {
	if refused := s.refuseRead(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	query, err := attemptsQueryOf(r)
	switch {
	case err != nil:
		s.problem(w, http.StatusBadRequest, err.Error())
	case s.sendToLeader(w, r):
	case query.follow:
		s.follow(w, r, query)
	default:
		httpserver.WriteJSON(w, http.StatusOK, s.remembered(query.filter, query.limit))
	}
}

func (s *Server) remembered(filter relay.AttemptFilter, limit int) admin.Remembered {
	of := s.options.Relay
	answer := admin.Remembered{Slot: of.Progress().Slot}
	answer.Attempts, answer.Since, _ = of.Attempts().Last(limit, filter)
	if answer.Attempts == nil {
		answer.Attempts = []relay.Attempt{} // an empty list is [] in JSON
	}
	if filter.Event != "" {
		answer.InHand = of.OpenFor(filter.Event)
		for _, o := range answer.InHand {
			if !slices.Contains(answer.Open, o.Subscriber) {
				answer.Open = append(answer.Open, o.Subscriber)
			}
		}
	}
	return answer
}

// follow sends a JSON object per line for each attempt, until the caller leaves or the server stops. A
// caller that does not read makes only this goroutine wait.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, query attemptsQuery) {
	if s.followers.Add(1) > maxFollowers {
		s.followers.Add(-1)
		w.Header().Set("Retry-After", "5")
		s.problem(w, http.StatusServiceUnavailable, fmt.Sprintf("%d follow already", maxFollowers))
		return
	}
	defer s.followers.Add(-1)
	stream := http.NewResponseController(w)
	// The server's read timeout would end the context of a request that goes on.
	if err := stream.SetReadDeadline(time.Time{}); err != nil {
		s.problem(w, http.StatusInternalServerError, "this connection cannot carry a stream: "+err.Error())
		return
	}
	ctx, leave := context.WithCancel(r.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer leave()
	watch.Go(func() {
		select {
		case <-s.stopping:
			leave() // before the deadline: send looks in the other order
			_ = stream.SetWriteDeadline(time.Now().Add(lastWrite))
		case <-ctx.Done():
		}
	})
	kind, write := "application/jsonl", writeLine
	if query.events {
		kind, write = eventStream, writeEvent
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep it back

	ring := s.options.Relay.Attempts()
	var page relay.Page
	if query.after == 0 {
		page.Attempts, _, page.Next = ring.Last(query.limit, query.filter)
	} else {
		page = ring.Read(query.after+1, query.filter)
	}
	send := func(page relay.Page) error { return s.send(ctx, w, stream, page, write) }
	err := send(page)
	beat := time.NewTicker(s.times.beat)
	defer beat.Stop()
	for err == nil {
		page = ring.Read(page.Next, query.filter)
		if page.Missed > 0 || len(page.Attempts) > 0 {
			err = send(page)
		}
		if err != nil || page.Changed == nil {
			continue
		}
		select {
		case <-page.Changed:
		case <-beat.C: // so that proxies keep the connection, and a caller that is gone is noticed
			err = send(relay.Page{Next: page.Next})
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	s.options.Log.Debug("stream of attempts ended", "err", err)
}

// eventStream is the media type of server-sent events. (WHATWG HTML, "Server-sent events")
const eventStream = "text/event-stream"

// writeLine writes a line of JSON lines.
func writeLine(w io.Writer, line admin.Line) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(line)
}

// writeEvent writes a server-sent event: an attempt with its seq as the id, a count of what is missed, or a comment as the
// sign of life.
func writeEvent(w io.Writer, line admin.Line) (err error) {
	switch {
	case line.Attempt != nil:
		_, err = fmt.Fprintf(w, "id: %d\nevent: attempt\ndata: ", line.Seq)
	case line.Missed > 0:
		_, err = io.WriteString(w, "event: missed\ndata: ")
	default:
		_, err = fmt.Fprintf(w, ": after %d\n\n", line.After)
		return err
	}
	if err == nil {
		err = writeLine(w, line) // JSON has no line feed in it
	}
	if err == nil {
		_, err = io.WriteString(w, "\n")
	}
	return err
}

// send writes a page.
func (s *Server) send(ctx context.Context, w io.Writer, stream *http.ResponseController, page relay.Page, write func(io.Writer, admin.Line) error) error {
	if err := stream.SetWriteDeadline(time.Now().Add(s.times.write)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out := &printable.Writer{Out: w}
	if page.Missed > 0 {
		if err := write(out, admin.Line{Missed: page.Missed}); err != nil {
			return err
		}
	}
	for i := range page.Attempts {
		if err := write(out, admin.Line{Attempt: &page.Attempts[i]}); err != nil {
			return err
		}
	}
	if page.Missed == 0 && len(page.Attempts) == 0 {
		if err := write(out, admin.Line{After: page.Next - 1}); err != nil {
			return err
		}
	}
	return stream.Flush()
}

// wantsEvents reports whether a client asks for server-sent events in place of JSON lines.
func wantsEvents(r *http.Request) bool {
	for value := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if kind, _, _ := strings.Cut(strings.TrimSpace(value), ";"); kind == eventStream {
			return true
		}
	}
	return false
}
