package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// S-35: two sources count their ids from 1.
func TestWebhook_namesTheSourceInTheIDWhereThereAreSeveral(t *testing.T) {
	for _, test := range []struct {
		name    string
		several bool
		format  string
		ids     []string // of a bill and a game
		inside  []string // of the body or the headers, likewise
	}{
		{"one source", false, webhook.Payload, []string{"1", "1"}, nil},
		{"several", true, webhook.Payload, []string{"bills:1", "games:1"}, nil},
		{"cloudevents", true, webhook.CloudEvents, []string{"bills:1", "games:1"}, []string{"bills:1", "games:1"}},
		{"structured", true, webhook.CloudEventsStructured, []string{"bills:1", "games:1"},
			[]string{`"id":"bills:1","source":"/walpost/bills"`, `"id":"games:1","source":"/walpost/games"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newReceiver(t, nil)
			o := options(r.URL)
			o.SeveralSources, o.Format = test.several, test.format
			sub := open(t, o)
			for i, source := range []string{"bills", "games"} {
				d := delivery(1)
				d.Source, d.ID = source, "1"
				if err := sub.Handle(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				got := r.got()[i]
				if got.header.Get("Webhook-Id") != test.ids[i] || got.header.Get("Walpost-Source") != source {
					t.Errorf("webhook-id %q of source %q, want %q of %q", got.header.Get("Webhook-Id"), got.header.Get("Walpost-Source"), test.ids[i], source)
				}
				if test.inside != nil && !strings.Contains(got.body+" "+got.header.Get("Ce-Id"), test.inside[i]) {
					t.Errorf("got %s and ce-id %q, want %q in it", got.body, got.header.Get("Ce-Id"), test.inside[i])
				}
				if err := verify(t, got, oldSecret); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// S-35: in a batch each element names its source.
func TestBatching_namesTheSourceOfEachElement(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.SeveralSources, o.Batch = true, 10
	sub := open(t, o).(subscriber.BatchSubscriber)
	bill, game := delivery(1), delivery(2)
	bill.Source, bill.ID, game.Source, game.ID = "bills", "1", "games", "1"
	for _, batch := range [][]subscriber.Delivery{{bill, game}, {bill}, {game}} {
		if err := sub.HandleBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	got := r.got()
	for _, want := range []string{`{"id":"bills:1","source":"bills",`, `{"id":"games:1","source":"games",`} {
		if !strings.Contains(got[0].body, want) {
			t.Errorf("got %s, want %s in it", got[0].body, want)
		}
	}
	if got[1].header.Get("Webhook-Id") == got[2].header.Get("Webhook-Id") {
		t.Errorf("batches of two sources have one id, %s", got[1].header.Get("Webhook-Id"))
	}
	var sources []string
	for _, request := range got {
		sources = append(sources, request.header.Get("Walpost-Source"))
	}
	if want := []string{"", "bills", "games"}; !slices.Equal(sources, want) {
		t.Errorf("Walpost-Source is %q, want %q: a header cannot speak for two", sources, want)
	}
}
