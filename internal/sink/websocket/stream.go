package websocket

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// stream is a client over server-sent events.
type stream struct {
	hub     *Hub
	w       http.ResponseWriter
	control *http.ResponseController
	gone    context.Context
	cutOff  context.CancelFunc
	text    []byte // of the last message, kept for the next
}

// reconnectAfter is what a browser waits before it comes again.
const reconnectAfter = time.Second

// largestKept is how large the buffer of a stream may be that is kept.
const largestKept = 4 << 10

func (h *Hub) openStream(ctx context.Context, w http.ResponseWriter, r *http.Request) (connection, error) {
	s := &stream{hub: h, w: w, control: http.NewResponseController(w)}
	gone, cutOff := context.WithCancel(r.Context())
	forget := context.AfterFunc(ctx, cutOff)
	s.gone, s.cutOff = gone, func() {
		forget()
		cutOff()
	}
	// The server's read timeout would end the context of a request that goes on.
	err := s.control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep it back
	if err == nil {
		err = s.write(fmt.Appendf(nil, "retry: %d\n\n", reconnectAfter.Milliseconds()))
	}
	if err == nil {
		err = s.flush()
	}
	if err != nil {
		s.cutOff()
		return nil, err
	}
	return s, nil
}

func (s *stream) left() <-chan struct{} { return s.gone.Done() }

func (s *stream) write(text []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.hub.WriteTimeout.Std())); err != nil {
		return err
	}
	_, err := s.w.Write(text)
	return err
}

func (s *stream) send(m *message) error {
	s.text = m.appendEvent(s.text[:0])
	err := s.write(s.text)
	if cap(s.text) > largestKept {
		s.text = nil
	}
	return err
}

func (s *stream) flush() error { return s.control.Flush() }

// ping is a comment: a write to a client that is gone fails soon.
func (s *stream) ping() error {
	if err := s.write([]byte(":\n\n")); err != nil {
		return err
	}
	return s.flush()
}

// close sends a last event. A browser would come again by itself, so a page listens to it.
func (s *stream) close(why ending) {
	defer s.cutOff()
	if why == left {
		return
	}
	if s.control.SetWriteDeadline(time.Now().Add(closeLimit)) != nil {
		return
	}
	_, _ = fmt.Fprintf(s.w, "event: close\ndata: {\"code\": %d, \"reason\": %q}\n\n", why.code, why.reason)
	_ = s.flush()
}
