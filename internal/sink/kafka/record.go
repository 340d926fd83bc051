package kafka

import (
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// usualHeaders is how many headers a record has most of the time.
const usualHeaders = 16

// recordOf makes the record of a delivery. Key, value and what a receiver dedupes on are the same at each attempt. The
// error is permanent.
func (k *Kafka) recordOf(d subscriber.Delivery) (*kgo.Record, error) {
	topic, err := k.topic.NameOf(d.Event)
	if err != nil {
		return nil, subscriber.Permanent(fmt.Errorf("topic: %w", err))
	}
	r := &kgo.Record{Topic: topic, Key: []byte(d.Key), Headers: make([]kgo.RecordHeader, 0, usualHeaders)}
	if d.Key == "" {
		// Each client spreads records without a key at random, and a compacted topic refuses them.
		r.Key = []byte(k.Envelope.ID(d.Event))
	}
	if k.Format == Debezium {
		return r, k.fillDebezium(r, d)
	}
	switch {
	case k.Format == CloudEventsStructured:
		r.Value = k.Envelope.AppendCloudEvent(nil, d.Event)
		r.Headers = append(r.Headers, header("content-type", "application/cloudevents+json; charset=utf-8"))
	case d.Payload != nil: // else a tombstone
		if r.Value, err = d.Body(); err != nil {
			return nil, subscriber.Permanent(err)
		}
	}
	if k.Format == CloudEvents { // Kafka protocol binding of CloudEvents 1.0, section 3.2
		for _, attribute := range k.Envelope.Attributes(d.Event) {
			r.Headers = append(r.Headers, header("ce_"+attribute[0], attribute[1]))
		}
		if d.Payload != nil {
			r.Headers = append(r.Headers, header("content-type", contentTypes[d.PayloadType]))
		}
	}
	for _, own := range k.Envelope.Headers(d.Event) {
		r.Headers = append(r.Headers, header(own[0], own[1]))
	}
	k.appendAttempt(r, d)
	for _, configured := range k.headers {
		value, err := configured.template.NameOf(d.Event)
		if err != nil {
			return nil, subscriber.Permanent(fmt.Errorf("header %s: %w", configured.name, err))
		}
		if value != "" {
			r.Headers = append(r.Headers, header(configured.name, value))
		}
	}
	return r, nil
}

// appendAttempt appends what is about the attempt and not about the event, and what is read back.
func (k *Kafka) appendAttempt(r *kgo.Record, d subscriber.Delivery) {
	r.Headers = append(r.Headers, header("walpost-attempt", strconv.Itoa(d.Attempt)), header("walpost-term", strconv.FormatInt(d.Term, 10)))
	if d.Replay {
		r.Headers = append(r.Headers, header("walpost-replay", "true"))
	} else if k.ExactlyOnce {
		r.Headers = append(r.Headers, headerOf(&d, r.Topic))
	}
}

var contentTypes = map[event.PayloadType]string{
	event.JSON: "application/json", event.Text: "text/plain; charset=utf-8", event.Binary: "application/octet-stream",
}

func header(name, value string) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: []byte(value)}
}

// sizeOf is the size of a batch that holds the record alone, before compression: the brokers' max.message.bytes is about
// that (KIP-98, "Message Format"). The numbers that depend on the batch, offset and time, are counted as one byte: alone
// they are 0.
func sizeOf(r *kgo.Record) int {
	const batchOverhead = 61
	size := 1 + 1 + 1 + field(len(r.Key)) + field(len(r.Value)) + varint(len(r.Headers))
	for _, h := range r.Headers {
		size += field(len(h.Key)) + field(len(h.Value))
	}
	return batchOverhead + varint(size) + size
}

// field is a length and so many bytes.
func field(n int) int { return varint(n) + n }

// varint is how many bytes a number takes in the zigzag form.
func varint(n int) int {
	size := 1
	for n = n << 1 >> 7; n > 0; n >>= 7 {
		size++
	}
	return size
}
