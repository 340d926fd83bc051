package httpserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// run starts a server on a free port; stop asks it to end, and ended has its result.
func run(t *testing.T, handler http.Handler, drain time.Duration) (url string, stop func(), ended <-chan error) {
	t.Helper()
	listener := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		server := Server{Handler: handler, Drain: drain, Log: slog.New(slog.DiscardHandler)}
		done <- server.Run(ctx, listener)
	}()
	return "http://" + listener.Addr().String(), cancel, done
}

func TestServer_finishesTheRequestInHandBeforeItStops(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	url, stop, ended := run(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-release
		if err := r.Context().Err(); err != nil {
			t.Errorf("the stop has cancelled the request: %v", err)
		}
		fmt.Fprint(w, "done")
	}), time.Minute)

	answer := make(chan string, 1)
	go func() {
		response, err := http.Get(url)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		answer <- string(body)
	}()
	<-entered
	stop()
	// It takes no one new: wait until the listener is closed.
	for {
		conn, err := net.Dial("tcp", url[len("http://"):])
		if err != nil {
			break
		}
		conn.Close()
	}
	close(release)
	if got := <-answer; got != "done" {
		t.Errorf("answer of the request in hand is %q, want done", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v, want nil", err)
	}
}

func TestServer_cutsOffWhatIsLeftAfterTheDrain(t *testing.T) {
	entered, cause := make(chan struct{}), make(chan error, 1)
	url, stop, ended := run(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		cause <- context.Cause(r.Context())
	}), time.Millisecond)
	go func() {
		if response, err := http.Get(url); err == nil {
			response.Body.Close()
		}
	}()
	<-entered
	stop()
	if err := <-ended; err == nil {
		t.Error("Run ended with nil, want an error that says what was left")
	}
	if err := <-cause; err == nil {
		t.Error("the request was not cancelled")
	}
}

func TestServer_returnsAnErrorWhenItCannotServe(t *testing.T) {
	listener := listen(t)
	listener.Close()
	server := Server{Handler: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)}
	if err := server.Run(t.Context(), listener); err == nil {
		t.Error("Run on a closed listener gives nil, want an error")
	}
}
