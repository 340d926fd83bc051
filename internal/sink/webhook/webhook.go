// Package webhook posts events to an HTTP address of someone else, signed as Standard Webhooks asks
// (https://www.standardwebhooks.com). It keeps no state but its connections: what a receiver dedupes on
// and checks is in the request, and what its answer means is in answer.go. It must never reach an address
// that no one allowed; see address.go. docs/webhooks.md is the page for receivers.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Formats of the body.
const (
	// Payload is the event's payload, byte for byte; with batches an array of objects that hold it.
	Payload = "payload"
	// CloudEvents is the payload with the event's attributes in ce- headers (binary mode).
	CloudEvents = "cloudevents"
	// CloudEventsStructured is a JSON object with attributes and payload; with batches an array of them.
	CloudEventsStructured = "cloudevents-structured"
)

// Options say where to and how. Problems tells what is wrong with them.
type Options struct {
	// Name is the subscriber's identity.
	Name string
	// URL is http or https, without user and password.
	URL string
	// SeveralSources says that events of more than one source come: then a source's name is part of what the
	// receiver dedupes on.
	SeveralSources bool
	// Zones are those of times without one, by source; UTC where there is none.
	Zones map[string]*time.Location
	// Secrets sign, all of them side by side, each "whsec_" and the base64 of 24 to 64 bytes. None: the
	// requests are not signed. One that is a safefile.Live is read again while the program runs.
	Secrets []string
	// SignHeaders adds signatures of the headers that walpost sets; it needs a secret.
	SignHeaders bool
	// Headers are sent along with every request. Their values can be a safefile.Live, too.
	Headers map[string]string
	// AllowPrivate permits addresses that are not of the public internet.
	AllowPrivate bool
	// Format is one of the formats above; "" is Payload.
	Format string
	// Batch is how many events one request takes at most. Above 1 every body is a JSON array, also that
	// of a single event.
	Batch int
	// Concurrency is how many calls come at the same time. Twice as many connections are used and kept at
	// most: a replay runs along with the live stream.
	Concurrency int
	// Timeout is the deadline that calls come with. Half of it may pass until a connection stands, and
	// half until TLS does, so that a failure says which of them it was.
	Timeout time.Duration
	// Resolver finds the addresses of names; nil is the system's.
	Resolver *net.Resolver
}

// Webhook is a subscriber that posts one event per request. It is safe for concurrent use.
type Webhook struct {
	name      string
	transport *transport
	rotation  *rotation
	request   *http.Request // what all requests have in common; never changed after New
	format    string

	envelope    envelope.Writer
	signHeaders bool
}

// Batching is a Webhook that posts a JSON array of events per request.
type Batching struct{ *Webhook }

// New makes the subscriber: a *Webhook, or a *Batching where Batch is above 1. Its errors are mistakes in
// the options, among them a name that stands for private addresses alone. A name that has no address right
// now is none: the receiver's names may be away like the receiver itself.
func New(o Options) (subscriber.Subscriber, error) {
	var errs []error
	for _, problem := range o.Problems() {
		errs = append(errs, fmt.Errorf("%s: %w", problem.Key, problem.Err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	target, _ := url.Parse(o.URL) // Problems has looked at it
	if err := o.checkName(target.Hostname()); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	w := &Webhook{
		name: o.Name, format: o.Format, envelope: envelope.Writer{SeveralSources: o.SeveralSources, Zones: o.Zones}, signHeaders: o.SignHeaders,
		rotation: newRotation(o, target),
	}
	w.request = &http.Request{
		Method: http.MethodPost, URL: target, Host: target.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	w.transport = &transport{open: func() *http.Transport { return newTransport(o) }}
	if o.Batch > 1 {
		return &Batching{w}, nil
	}
	return w, nil
}

// Probe connects to the receiver, with TLS where its address asks for that, and sends nothing.
func (w *Webhook) Probe(ctx context.Context) error {
	transport := w.transport.open()
	defer transport.CloseIdleConnections()
	host, port := w.request.URL.Hostname(), w.request.URL.Port()
	secure := w.request.URL.Scheme == "https"
	switch {
	case port == "" && secure:
		port = "443"
	case port == "":
		port = "80"
	}
	conn, err := transport.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", w.request.Host, err)
	}
	defer conn.Close()
	if !secure {
		return nil
	}
	config := &tls.Config{ServerName: host}
	if transport.TLSClientConfig != nil {
		config = transport.TLSClientConfig.Clone()
		config.ServerName = host
	}
	if err := tls.Client(conn, config).HandshakeContext(ctx); err != nil {
		return fmt.Errorf("connect to %s: %w", w.request.Host, err)
	}
	return nil
}

// Close closes the connections. No call may be under way.
func (w *Webhook) Close() error {
	w.transport.CloseIdleConnections()
	return nil
}

// newTransport makes the connections of one subscriber. HTTP/1.1 on purpose: requests that share a
// connection would share its stalls. No proxy, because it would dial in our place and unchecked.
func newTransport(o Options) *http.Transport {
	dialer := &net.Dialer{Timeout: o.Timeout / 2, KeepAlive: 30 * time.Second, Resolver: o.Resolver, Control: guard(o.AllowPrivate)}
	connections := 2 * o.Concurrency
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    o.Timeout / 2,
		MaxConnsPerHost:        connections,
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true, // no one looks into the answer, and a small one can unpack to a large one
		MaxResponseHeaderBytes: maxRest,
	}
}

// Name implements subscriber.Subscriber.
func (w *Webhook) Name() string { return w.name }

// Wants implements subscriber.Subscriber: which events go where is a matter of configuration.
func (w *Webhook) Wants(string) bool { return true }

// Handle posts one event. Its error is Permanent, Pause or RetryAfter as the answer says.
func (w *Webhook) Handle(ctx context.Context, d subscriber.Delivery) error {
	credentials, err := w.rotation.current()
	if err != nil {
		return err
	}
	header := w.newHeader(credentials, d)
	body, contentType := bodyOf(d)
	switch w.format {
	case CloudEvents:
		w.cloudHeader(header.Header, d)
	case CloudEventsStructured:
		body = w.envelope.AppendCloudEvent(nil, d.Event)
		header.Header["Content-Type"] = structuredType
	}
	if _, set := header.Header["Content-Type"]; !set && contentType != nil {
		header.Header["Content-Type"] = contentType // values are shared: no one changes them
	}
	return w.post(ctx, envelope.HeaderText(w.envelope.ID(d.Event)), header, body)
}

// post signs and sends. id is as it stands in the header.
func (w *Webhook) post(ctx context.Context, id string, header *headers, body []byte) error {
	if trace.SpanContextFromContext(ctx).IsSampled() { // else what the event has is passed on
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header.Header))
	}
	w.sign(header, id, time.Now(), body)
	request := w.request.WithContext(ctx)
	request.Header, request.ContentLength, request.Body = header.Header, int64(len(body)), http.NoBody
	if len(body) > 0 {
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		request.Body, _ = request.GetBody()
	}
	// The transport itself and no http.Client: no redirect is followed, no cookie is kept, and no error
	// quotes the URL, which may hold a token.
	response, err := w.transport.RoundTrip(request)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return header.masking().Error(fmt.Errorf("post to %s: %w", w.request.Host, err)) // it may quote the answer
	}
	defer response.Body.Close()
	return w.judge(ctx, response, header, len(body))
}

// masking is the mask with the signatures of one request.
func (h *headers) masking() *mask.Mask {
	m := h.credentials.mask
	for _, signature := range strings.Fields(h.Get("Webhook-Signature") + " " + h.Get(headerSignature)) {
		m = m.With(strings.TrimPrefix(signature, "v1,"))
	}
	return m
}
