package webhook

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// S-58: a connection that is busy all the time is not used for longer than a minute, so that a name that leads
// elsewhere now is noticed.
func TestTransport_connectsAgainAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		dials := 0
		var served sync.WaitGroup
		client := &transport{open: func() *http.Transport {
			return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dials++
				ours, theirs := net.Pipe()
				served.Go(func() { answerAll(theirs) })
				return ours, nil
			}}
		}}
		for range 150 { // one request a second
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://receiver.example/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		mu.Lock()
		if dials != 3 {
			t.Errorf("%d connections in two and a half minutes, want 3", dials)
		}
		mu.Unlock()
		client.CloseIdleConnections()
		served.Wait()
	})
}

// answerAll answers each request of a connection with nothing.
func answerAll(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 4096)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		if _, err := conn.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n")); err != nil {
			return
		}
	}
}
