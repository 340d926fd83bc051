package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

type message = *client.Msg

// messageOf makes the message of a delivery. Subject, data, and what the server and a receiver dedupe on are the same at each
// attempt. The error is permanent.
func (n *NATS) messageOf(d subscriber.Delivery) (message, error) {
	subject, err := n.subjectOf(d.Event)
	if err != nil {
		return nil, subscriber.Permanent(fmt.Errorf("subject: %w", err))
	}
	const usualHeaders = 16
	m := &client.Msg{Subject: subject, Header: make(client.Header, usualHeaders)}
	set := func(name, value string) { m.Header[name] = []string{value} }
	switch {
	case n.Format == CloudEventsStructured:
		m.Data = n.Envelope.AppendCloudEvent(nil, d.Event)
		set("content-type", "application/cloudevents+json; charset=utf-8")
	case d.Payload != nil:
		if m.Data, err = d.Body(); err != nil {
			return nil, subscriber.Permanent(err)
		}
	}
	if n.Format == CloudEvents { // NATS protocol binding of CloudEvents 1.0.2, section 3.1
		for _, attribute := range n.Envelope.Attributes(d.Event) {
			set("ce-"+attribute[0], envelope.HeaderText(attribute[1]))
		}
		if d.Payload != nil {
			set("content-type", contentTypes[d.PayloadType])
		}
	}
	for _, own := range n.Envelope.Headers(d.Event) {
		if name := headerName(own[0]); name != "" {
			set(name, envelope.HeaderText(own[1]))
		}
	}
	set("walpost-attempt", strconv.Itoa(d.Attempt))
	set("walpost-term", strconv.FormatInt(d.Term, 10))
	if d.Replay {
		set("walpost-replay", "true")
	}
	for _, configured := range n.headers {
		value, err := configured.template.NameOf(d.Event)
		if err != nil { // it has line breaks: then it goes as those of the event do
			value = envelope.HeaderText(value)
		}
		if value != "" {
			set(configured.name, value)
		}
	}
	set(jetstream.MsgIDHeader, n.messageID(d))
	return m, nil
}

// subjectOf is the subject of an event. What only data has made must not lead to the subjects on which servers and clients
// talk: a message to $JS.API.STREAM.DELETE.x deletes stream x, with our rights.
func (n *NATS) subjectOf(e *event.Event) (string, error) {
	subject, err := n.subject.NameOf(e)
	if err != nil {
		return "", err
	}
	chosen := strings.Contains(literal(n.Subject), ".") // the first token stands in the configuration
	if _, fixed := n.subject.Fixed(); !fixed && !chosen && (subject[0] == '$' || subject[0] == '_') {
		return "", fmt.Errorf("%.100q begins as the subjects do that belong to the servers", subject)
	}
	return subject, nil
}

// messageID is what the server dedupes on: the identity of the event for this subscriber. The occurrence is in it, because
// an id that comes again with another one is another event; the subscriber is, because two of them can have one stream. A
// replay of which the effects are wanted once more is no duplicate.
func (n *NATS) messageID(d subscriber.Delivery) string {
	sum := sha256.New()
	for _, part := range []string{n.Slot, n.Options.Name, d.Source, d.ID, d.Occurrence} {
		_, _ = io.WriteString(sum, part)
		_, _ = sum.Write([]byte{0})
	}
	if !d.Again.IsZero() {
		_, _ = io.WriteString(sum, d.Again.UTC().Format(time.RFC3339Nano))
	}
	return envelope.HeaderText(n.Envelope.ID(d.Event)) + "." + hex.EncodeToString(sum.Sum(nil)[:16])
}

var contentTypes = map[event.PayloadType]string{
	event.JSON: "application/json", event.Text: "text/plain; charset=utf-8", event.Binary: "application/octet-stream",
}

// sizeOf is what max_payload and max_msg_size count: headers and data.
func sizeOf(m message) int { return m.Size() - len(m.Subject) - len(m.Reply) }
