package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// S-184: what stands at the address of the relay answers with a value that has no end. A command reads so much of it and
// no more.
func TestAsk_readsNoAnswerWithoutEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	for command, limit := range map[string]int64{"tail": maxLine, "event x": maxAnswer} {
		var written atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			piece := []byte(strings.Repeat("x", 64<<10))
			_, err := w.Write([]byte(`{"state":"`))
			for err == nil && written.Load() < limit+64<<20 {
				_, err = w.Write(piece)
				written.Add(int64(len(piece)))
			}
		}))
		relay := asked{url: server.URL, base: server.URL, client: server.Client()}
		var err error
		if command == "tail" {
			stream, failed := relay.open(t.Context(), "/v1/attempts", nil)
			if failed != nil {
				t.Fatal(failed)
			}
			err = (&tail{relay: &relay}).print(stream)
			stream.Close()
		} else {
			err = relay.get(t.Context(), "/v1/attempts", nil, new(any))
		}
		server.Close()
		// What was sent and not read is in the buffers of two sockets.
		// A slow machine meets the limit of time first.
		if err == nil || written.Load() >= limit+32<<20 {
			t.Errorf("%s: %d bytes were taken: %v", command, written.Load(), err)
		}
	}
}
