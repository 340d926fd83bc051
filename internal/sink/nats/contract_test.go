package nats_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/nats"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) {
	natstest.Main()
	os.Exit(testprogram.Main(m))
}

const maxPayload = 100_000

// stream is a stream of a server, with a subscriber that sends there.
type stream struct {
	server *natstest.Server
	name   string
	change func(*nats.Options)
}

var streams atomic.Int64

func newStream(t *testing.T, s *natstest.Server, atomically bool, change func(*nats.Options)) *stream {
	o := &stream{server: s, name: fmt.Sprintf("contract-%d", streams.Add(1)), change: change}
	s.Stream(t, jetstream.StreamConfig{Name: o.name, Subjects: []string{o.name + ".>"}, AllowAtomicPublish: atomically})
	return o
}

func options(s *natstest.Server, subject string) nats.Options {
	c := nats.NewConfig()
	c.Servers, c.Subject = []string{s.Address()}, subject
	return nats.Options{Config: c, Name: "thoughts", Slot: "walpost", Ordering: "key", Timeout: 30 * time.Second}
}

func (o *stream) Open(t *testing.T) subscriber.Subscriber {
	options := options(o.server, o.name+".{type}")
	if o.change != nil {
		o.change(&options)
	}
	sub, err := nats.New(options)
	if err != nil {
		t.Fatal(err)
	}
	sub.BatchFrom(1)
	return sub
}

func (o *stream) Received(t *testing.T) []sinktest.Received {
	var all []sinktest.Received
	for _, m := range o.server.Messages(t, o.name) {
		all = append(all, sinktest.Received{ID: m.Header.Get("webhook-id"), Key: decoded(t, m.Header.Get("walpost-key")), Body: m.Data})
	}
	return all
}

// decoded is the text of a header.
func decoded(t *testing.T, value string) string {
	t.Helper()
	text, err := url.PathUnescape(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (o *stream) Down(t *testing.T)         { o.server.Down(t) }
func (o *stream) Up(t *testing.T)           { o.server.Up(t) }
func (o *stream) PartlyAbsent()             {}
func (o *stream) Limit(*testing.T) int      { return maxPayload }
func (o *stream) Stall(t *testing.T) func() { return o.server.Freeze(t) }

// locked is a stream behind a login whose password stands in a file.
type locked struct {
	*stream
	file string
}

const password = "r1ght-s3cr3t-0f-t3sts"

func (l *locked) Lock(t *testing.T)   { write(t, l.file, "wr0ng-s3cr3t") }
func (l *locked) Unlock(t *testing.T) { write(t, l.file, password) }

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var limit = fmt.Sprintf("max_payload: %d", maxPayload)

// F-33, F-46, F-49: what is told of an event is what the stream has told of its message, whatever fails meanwhile; its id,
// key and bytes are the same each time.
func TestNATS_keepsTheContractByWaves(t *testing.T) {
	s := natstest.Start(t, limit)
	sinktest.Run(t, func(t *testing.T) sinktest.Destination { return newStream(t, s, false, nil) })
}

// F-33, F-46, F-49
func TestNATS_keepsTheContractInBatches(t *testing.T) {
	s := natstest.Start(t, limit)
	sinktest.Run(t, func(t *testing.T) sinktest.Destination { return newStream(t, s, true, nil) })
}

func TestNATS_keepsTheContractBehindALogin(t *testing.T) {
	login := fmt.Sprintf(`authorization { users = [ {user: admin, password: admin}, {user: walpost, password: %q} ] }`, password)
	s := natstest.StartWithLogin(t, asAdmin, limit, login)
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		l := &locked{file: filepath.Join(t.TempDir(), "password")}
		l.Unlock(t)
		l.stream = newStream(t, s, true, func(o *nats.Options) {
			o.Auth = &nats.Auth{User: "walpost", Password: config.Secret(safefile.Live(l.file, ""))}
		})
		return l
	})
}
