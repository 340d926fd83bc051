package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Media types of the CloudEvents formats (CloudEvents JSON format 1.0, sections 3 and 4).
var (
	structuredType = []string{"application/cloudevents+json; charset=utf-8"}
	batchType      = []string{"application/cloudevents-batch+json; charset=utf-8"}
)

// cloudHeader adds the attributes to the headers (CloudEvents HTTP binding, section 3.1).
func (w *Webhook) cloudHeader(header http.Header, d subscriber.Delivery) {
	for _, attribute := range w.envelope.Attributes(d.Event) {
		name, value := attribute[0], envelope.HeaderText(attribute[1])
		if name == "partitionkey" {
			value = encodeKey(attribute[1])
		}
		if len(value) <= maxValue {
			header.Set("Ce-"+name, value)
		}
	}
}

// batchID is the same for the same events in the same order, so that it is stable for as long as a batch
// is tried again as it was. What a receiver dedupes on is the ids inside.
func (w *Webhook) batchID(deliveries []subscriber.Delivery) string {
	h := sha256.New()
	for _, d := range deliveries {
		h.Write([]byte(w.envelope.ID(d.Event)))
		h.Write([]byte{0}) // no text of Postgres holds it
	}
	return "batch_" + hex.EncodeToString(h.Sum(nil)[:16])
}
