// Package httpserver runs the HTTP servers of the program: the completions API, the operators' API, and the hubs that
// clients follow events at. It knows no route; what they have in common is how they start, which clients they end, how they
// stop, and how they tell an error. A destination that calls servers of others has rules of its own and does not import it.
package httpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/backendstart/walpost/internal/printable"
)

// ErrCutOff means that requests were still in hand when the time to stop was over.
var ErrCutOff = errors.New("requests were still in hand")

// Limits end a client that sends or reads slowly, or sends too much. All of them are needed: zero is no limit.
type Limits struct {
	Read   time.Duration // of the whole request, its header included
	Header time.Duration // of the header; 0 is Read
	Write  time.Duration // of the answer
	Idle   time.Duration // between two requests
	Bytes  int           // of the header
}

// Server serves a handler until it is told to stop.
type Server struct {
	Handler http.Handler
	Limits  Limits
	// Drain is how long requests in hand may go on after the stop; 0 cuts them off at once.
	Drain time.Duration
	// OnStop is called when the stop begins: answers without an end must end. nil is fine.
	OnStop func()
	Log    *slog.Logger
}

// Run answers requests on listener, which it closes, until ctx ends. Then it takes no new connection, finishes the requests
// in hand, and returns nil, or after Drain cuts off what is left and returns ErrCutOff.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	// Requests outlive ctx: a soft stop ends taking, not answering.
	requests, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: s.Limits.Header,
		ReadTimeout:       s.Limits.Read,
		WriteTimeout:      s.Limits.Write,
		IdleTimeout:       s.Limits.Idle,
		MaxHeaderBytes:    s.Limits.Bytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1) // one result, and Run may have left
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	if s.OnStop != nil {
		s.OnStop()
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain)
	defer cancel()
	err := server.Shutdown(drain)
	if err != nil {
		abandon(errors.New("the server stops"))
		// The error is that of listeners that are closed already.
		_ = server.Close()
	}
	if broken := <-served; !errors.Is(broken, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), broken) // it broke just when it was to stop
	}
	if err != nil {
		return fmt.Errorf("stop serving on %s: %w after %s: %w", listener.Addr(), ErrCutOff, s.Drain, err)
	}
	return nil
}

// WriteProblem answers with an error in the form of RFC 9457. problem is its JSON object.
func WriteProblem(w http.ResponseWriter, status int, problem any) {
	w.Header().Set("Content-Type", "application/problem+json")
	WriteJSON(w, status, problem)
}

// WriteJSON answers with a JSON document, indented, without characters that would change how a terminal shows it. Its type is
// application/json unless the header says another.
func WriteJSON(w http.ResponseWriter, status int, document any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	encoder := json.NewEncoder(&printable.Writer{Out: w})
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // a payload stays as it is
	_ = encoder.Encode(document) // an error means that the client has gone
}
