package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"

	"github.com/backendstart/walpost/internal/subscriber"
)

func of(sub subscriber.Subscriber) *Webhook {
	if b, ok := sub.(*Batching); ok {
		return b.Webhook
	}
	return sub.(*Webhook)
}

// Trust makes a webhook believe the certificates of a test's receiver.
func Trust(sub subscriber.Subscriber, roots *x509.CertPool) {
	change(sub, func(t *http.Transport) { t.TLSClientConfig = &tls.Config{RootCAs: roots} })
}

// DialBy has a webhook connect by dial, unchecked.
func DialBy(sub subscriber.Subscriber, dial func(context.Context, string, string) (net.Conn, error)) {
	change(sub, func(t *http.Transport) { t.DialContext = dial })
}

// change makes the connections of a webhook, which has none yet, differ.
func change(sub subscriber.Subscriber, how func(*http.Transport)) {
	t := of(sub).transport
	open := t.open
	t.open = func() *http.Transport {
		opened := open()
		how(opened)
		return opened
	}
}

// CloseIdle closes the connections that a webhook keeps.
func CloseIdle(sub subscriber.Subscriber) { of(sub).transport.CloseIdleConnections() }
