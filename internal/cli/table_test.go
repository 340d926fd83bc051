package cli

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/backendstart/walpost/internal/relay"
)

// standing is a relay that stands as it says.
type standing relay.Progress

func (s standing) Health() relay.Health     { return relay.Health{Ready: true, State: s.State} }
func (s standing) Progress() relay.Progress { return relay.Progress(s) }

func demoRelay() (standing, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	factory := promauto.With(registry)
	received := factory.NewCounterVec(prometheus.CounterOpts{Name: "walpost_events_received_total"}, []string{"source"})
	received.WithLabelValues("lessons").Add(40)
	received.WithLabelValues("shop").Add(2)
	factory.NewGauge(prometheus.GaugeOpts{Name: "walpost_slot_lag_bytes"}).Set(3 << 20)
	latency := factory.NewHistogramVec(prometheus.HistogramOpts{
		Name: "walpost_commit_to_ack_seconds", Buckets: []float64{.001, .01, .1},
	}, []string{"subscriber"})
	for range 99 {
		latency.WithLabelValues("analytics").Observe(.005)
		latency.WithLabelValues("achievements").Observe(.005)
	}
	latency.WithLabelValues("analytics").Observe(.05)
	for range 2 {
		latency.WithLabelValues("achievements").Observe(5)
	}
	return standing{State: relay.Streaming, ConfirmedLSN: "0/1A2B", Subscribers: []relay.Subscriber{
		{Name: "analytics", Delivered: 100, Failed: 3}, {Name: "achievements", Delivered: 101, Dead: 1}, {Name: "new"},
	}}, registry
}

func TestTable_saysHowEachSubscriberStands(t *testing.T) {
	of, registry := demoRelay()
	shown := table{relay: of, registry: registry, screen: &screen{live: true}}
	got, err := shown.render()
	if err != nil {
		t.Fatal(err)
	}
	want := `streaming   events in 42   open 0   slot lag 3 MiB   confirmed 0/1A2B

    subscriber  delivered  failed  dead  commit to ack, p99
     analytics        100       3     0              ≤ 10ms
  achievements        101       0     1             > 100ms
           new          0       0     0                   -
`
	if got != want {
		t.Errorf("shows\n%s\nwant\n%s", got, want)
	}
	shown.screen.live = false
	got, err = shown.render()
	if err != nil || strings.Count(got, "\n") != 1 || !strings.Contains(got, "events in 42") || !strings.Contains(got, "analytics delivered 100") {
		t.Errorf("without a terminal it says %q, %v", got, err)
	}
}

func TestScreen_drawsInPlaceAndLetsTheLogPassAbove(t *testing.T) {
	var out strings.Builder
	live := &screen{out: &out, live: true}
	live.show("a\nb\n")
	live.Write([]byte("log\n"))
	live.show("c\n")
	const up2 = "\x1b[2A\r\x1b[J"
	if got, want := out.String(), "a\nb\n"+up2+"log\na\nb\n"+up2+"c\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	out.Reset()
	plain := newScreen(&out, nil)
	plain.show("a\n")
	plain.show("b\n")
	if got, want := out.String(), "a\nb\n"; got != want {
		t.Errorf("without a terminal wrote %q, want %q", got, want)
	}
}
