package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Transports are the ways from a relay to its server that a private server offers.
var Transports = []string{"tcp", "tls", "unix"}

// A Stream is what the case noop drains: over which connection, in what transactions, how large the events are, and for
// how many subscribers.
type Stream struct {
	Transport   string // of Transports; "" is what the URL of the server says
	Shape       string
	Payload     int
	Subscribers int
}

// Choice is what a person has asked for of the streams; an empty list is nothing in particular.
type Choice struct {
	Transports, Shapes    []string
	Payloads, Subscribers []int
	Full                  bool // all that there is, where nothing in particular is asked for
}

// Streams are those that are drained: by default all shapes of small events over TCP, and of everything else one that
// shows it.
func (c Choice) Streams() []Stream {
	if !c.Full && len(c.Transports)+len(c.Payloads)+len(c.Subscribers) == 0 {
		var all []Stream
		for _, s := range []Stream{
			{"tcp", "1", 250, 3}, {"tcp", "100", 250, 3}, {"tcp", "huge", 250, 3},
			{"tls", "100", 250, 3}, {"unix", "100", 250, 3},
			{"tcp", "100", 10_000, 3}, {"tcp", "100", 200_000, 3}, {"tcp", "100", 250, 30},
		} {
			if len(c.Shapes) == 0 || slices.Contains(c.Shapes, s.Shape) {
				all = append(all, s)
			}
		}
		return all
	}
	var all []Stream
	for _, transport := range orAll(c.Transports, Transports, c.Full) {
		for _, payload := range orAll(c.Payloads, []int{250, 10_000, 200_000}, c.Full) {
			for _, subscribers := range orAll(c.Subscribers, []int{3, 30}, c.Full) {
				for _, shape := range orAll(c.Shapes, Shapes, true) {
					all = append(all, Stream{transport, shape, payload, subscribers})
				}
			}
		}
	}
	return all
}

// orAll is what was chosen, else all, else the first of all.
func orAll[T any](chosen, all []T, full bool) []T {
	switch {
	case len(chosen) > 0:
		return chosen
	case full:
		return all
	default:
		return all[:1]
	}
}

// events is how many of the events of a backlog the stream has: of large ones fewer, so that all streams take seconds.
func (s Stream) events(of int) int {
	const most = 1 << 30 // bytes of payloads
	return max(1, min(of, most/s.Payload))
}

func (s Stream) String() string {
	shape := map[string]string{"1": "1-row transactions", "huge": "one huge transaction"}[s.Shape]
	if shape == "" {
		shape = "transactions of " + s.Shape
	}
	text := fmt.Sprintf("%s of %s", shape, bytesOf(s.Payload))
	if way := map[string]string{"tcp": "TCP", "tls": "TLS", "unix": "Unix socket"}[s.Transport]; way != "" {
		text += ", " + way
	}
	if s.Subscribers != 3 {
		text += fmt.Sprintf(", %d subscribers", s.Subscribers)
	}
	return text
}

func bytesOf(n int) string {
	if n >= 1000 && n%1000 == 0 {
		return strconv.Itoa(n/1000) + " kB"
	}
	return strconv.Itoa(n) + " B"
}

// rateBar is what the rate of the stream has to be compared with pg_recvlogical over the same connection.
func (s Stream) rateBar() bar {
	b := bar{what: s.String() + ": rate", unit: "events/s", baseline: "pg_recvlogical"}
	switch {
	case s.Subscribers > 3:
		b.bar, b.aim = 0.9, 1.2
	case s.Payload >= 100_000:
		b.bar, b.aim = 1, 1.1
	case s.Payload >= 5000:
		b.bar, b.aim = 1.1, 1.3
	case s.Transport == "tls":
		b.bar, b.aim = 1.1, 1.4
	case s.Transport == "unix":
		b.bar, b.aim = 0.85, 1.1
	default:
		b.bar, b.aim = 1.25, 1.6
	}
	return b
}

// isPlain is true of the streams whose processor time and allocations have a bar: small events over TCP, three subscribers.
func (s Stream) isPlain() bool {
	return (s.Transport == "tcp" || s.Transport == "") && s.Payload < 5000 && s.Subscribers <= 3
}

func (s Stream) cpuBar() bar {
	b := bar{what: s.String() + ": client CPU", unit: "µs/event", baseline: "pg_recvlogical", atMost: true, bar: 0.6, aim: 0.4}
	if s.Shape == "1" {
		b.bar, b.aim = 0.4, 0.25
	}
	return b
}

func (s Stream) allocsBar() bar {
	return bar{what: s.String() + ": allocations from socket to handler", unit: "per event", atMost: true, bar: 1, aim: 0.1}
}

// noop drains streams into subscribers that do nothing, compared with pg_recvlogical, which writes the same WAL to /dev/null over
// a connection of the same kind.
func noop(ctx context.Context, l *lab) error {
	recvlogical, found := findRecvlogical()
	defer func() { l.via = l.dsn }()
	for _, s := range l.Streams {
		events := s.events(l.Events)
		end, err := l.backlog(ctx, s.Shape, events, s.Payload)
		if err != nil {
			return err
		}
		if l.via, err = l.transport(s.Transport); err != nil {
			return err
		}
		all := []contestant{{"walpost", func(ctx context.Context) (sample, error) {
			return l.drain(ctx, noops("bench-noop", s.Subscribers), events, s.Subscribers)
		}}}
		if found {
			all = append(all, contestant{"pg_recvlogical", func(ctx context.Context) (sample, error) {
				return l.recvlogical(ctx, recvlogical, end, events)
			}})
		}
		samples, err := l.turns(ctx, "no-op, "+s.String(), all...)
		if err != nil {
			return err
		}
		bars := []bar{s.rateBar()}
		if s.isPlain() {
			bars = append(bars, s.cpuBar())
		}
		if !found {
			l.notRun(noRecvlogical, bars...)
		} else {
			l.compare(bars[0], samples[0], samples[1], rateOf)
			l.addNote("client CPU %s µs/event, pg_recvlogical %s", number(spread(each(samples[0], cpuOf)).Median), number(spread(each(samples[1], cpuOf)).Median))
			if s.isPlain() {
				l.report.Rows[len(l.report.Rows)-1].Note = ""
				l.compare(bars[1], samples[0], samples[1], cpuOf)
			}
		}
		if s.isPlain() {
			l.absolute(s.allocsBar(), "allocations are those of the whole process while it drains, with the calls of the handlers; "+
				"the way from the socket to the lane alone, which the bar is about, is a test of package dispatch", each(samples[0], allocsOf)...)
		}
	}
	return nil
}
