package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts of the server. They end a client that sends or reads slowly; a handler has its own deadline
// (Options.Timeout), which is shorter than writeTimeout.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// Server serves a handler until it is told to stop.
type Server struct {
	Handler http.Handler
	// Drain is how long requests in hand may go on after the stop; 0 cuts them off at once.
	Drain time.Duration
	Log   *slog.Logger
}

// Run answers requests on listener, which it closes, until ctx ends. Then it takes no new connection,
// finishes the requests in hand, and returns nil, or after Drain cuts off what is left and returns an
// error that says so.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	// Requests outlive ctx: a soft stop ends taking, not answering.
	requests, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
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
		return fmt.Errorf("stop serving on %s: requests were still in hand after %s: %w", listener.Addr(), s.Drain, err)
	}
	return nil
}
