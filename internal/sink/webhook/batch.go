package webhook

import (
	"context"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Handle posts an array of one.
func (b *Batching) Handle(ctx context.Context, d subscriber.Delivery) error {
	return b.HandleBatch(ctx, []subscriber.Delivery{d})
}

// HandleBatch posts all deliveries in one request. The answer is for all of them: after a refusal the lane
// hands over fewer at once, until the bad one stands alone.
func (b *Batching) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	credentials, err := b.rotation.current()
	if err != nil {
		return err
	}
	size := 2
	last := deliveries[0] // the one with the most attempts speaks for all
	oneSource := true
	for _, d := range deliveries {
		size += len(d.Payload) + 512
		oneSource = oneSource && d.Source == last.Source
		if d.Attempt > last.Attempt {
			last = d
		}
	}
	header := b.attemptHeader(credentials, last)
	if oneSource { // else each element says its own
		header.set("Walpost-Source", envelope.HeaderText(last.Source))
	}
	if _, set := header.Header["Content-Type"]; !set {
		header.Header["Content-Type"] = jsonType
	}
	appendOne := b.envelope.AppendObject
	if b.format == CloudEventsStructured {
		header.Header["Content-Type"] = batchType
		appendOne = b.envelope.AppendCloudEvent
	}
	body := append(make([]byte, 0, size), '[')
	for i, d := range deliveries {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendOne(body, d.Event)
	}
	return b.post(ctx, b.batchID(deliveries), header, append(body, ']'))
}
