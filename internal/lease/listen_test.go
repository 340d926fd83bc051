package lease

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-66: any role that can connect can send notifications, and a session answers nothing before it has sent them all.
func TestLease_isNotLostToAFloodOfNotifications(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const perSecond = 2 << 20
	listens := make(chan struct{}, 1000)
	l := New(Options{URL: throttled(t, db.DSN, perSecond), Slot: db.Name, Log: slog.New(slog.DiscardHandler), Notified: func() { listens <- struct{}{} }})
	ctx, cancel := context.WithCancel(t.Context())
	go l.Run(ctx)
	defer func() {
		cancel()
		<-l.left
	}()
	leads(t, db, l)
	<-listens
	before := l.State()
	// What the line carries in 8 seconds, of which each is a payload of its own.
	db.Exec(`SELECT count(pg_notify('walpost', repeat('x', 7900) || n)) FROM generate_series(1, $1) n`, 8*perSecond/7900)
	select {
	case <-before.Changed:
		t.Fatalf("lost: %s", l.State().Why)
	case <-time.After(2 * leaseTime):
	}
	if !l.Valid() {
		t.Errorf("not valid any more: %+v", l.State())
	}
}

// S-66
func TestLease_listensNoMoreForAWhileWhenNotificationsComeTooFast(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	listens := make(chan struct{}, 2*notificationBurst)
	l := New(Options{URL: db.DSN, Slot: db.Name, Log: slog.New(slog.DiscardHandler), Notified: func() { listens <- struct{}{} }})
	heard := make(chan error, 1)
	go func() { heard <- l.hear(t.Context()) }()
	<-listens
	db.Exec(`SELECT count(pg_notify('walpost', n::text)) FROM generate_series(1, $1) n`, 2*notificationBurst)
	if err := <-heard; !errors.Is(err, errFlood) {
		t.Errorf("got %v, want %v", err, errFlood)
	}
}

// throttled returns dsn by way of a line that carries so many bytes a second from the server, on each connection.
func throttled(t *testing.T, dsn string, perSecond int) string {
	t.Helper()
	to, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	server := to.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				defer upstream.Close()
				_, _ = io.Copy(upstream, client)
			}()
			go func() {
				defer client.Close()
				for {
					n, err := io.CopyN(client, upstream, int64(perSecond/100))
					if err != nil {
						return
					}
					time.Sleep(time.Duration(n) * time.Second / time.Duration(perSecond))
				}
			}()
		}
	}()
	to.Host = listener.Addr().String()
	return to.String()
}
