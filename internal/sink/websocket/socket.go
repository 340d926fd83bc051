package websocket

import (
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// socket is a client over WebSocket.
type socket struct {
	hub  *Hub
	conn *websocket.Conn
	// reading ends when the client has gone, or has sent something: it has nothing to say.
	reading context.Context
	cutOff  context.CancelFunc // ends reading, and the connection with it
}

// largestWord is what a client may send before it is closed.
const largestWord = 512

func (h *Hub) openSocket(ctx context.Context, w http.ResponseWriter, r *http.Request) (connection, error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OriginPatterns: h.Origins, Subprotocols: []string{protocol}})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(largestWord)
	ctx, cutOff := context.WithCancel(ctx)
	return &socket{h, conn, conn.CloseRead(ctx), cutOff}, nil
}

func (s *socket) left() <-chan struct{} { return s.reading.Done() }

// send implements connection. A message that is not written in time ends the connection.
func (s *socket) send(m *message) error {
	ctx, cancel := context.WithTimeout(s.reading, s.hub.WriteTimeout.Std())
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, m.text)
}

func (s *socket) flush() error { return nil }

// ping asks for a pong, which a reader that is gone does not send.
func (s *socket) ping() error {
	go func() {
		ctx, cancel := context.WithTimeout(s.reading, s.hub.Ping.Std())
		defer cancel()
		if s.conn.Ping(ctx) != nil {
			s.cutOff()
		}
	}()
	return nil
}

// close tells the client why. The library would wait ten seconds for one that does not answer.
func (s *socket) close(why ending) {
	defer s.cutOff()
	if why == left {
		_ = s.conn.CloseNow()
		return
	}
	timer := time.AfterFunc(closeLimit, s.cutOff)
	defer timer.Stop()
	_ = s.conn.Close(websocket.StatusCode(why.code), why.reason)
}
