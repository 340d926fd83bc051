package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

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
	of(sub).transport.TLSClientConfig = &tls.Config{RootCAs: roots}
}

// DialBy has a webhook connect by dial, unchecked.
func DialBy(sub subscriber.Subscriber, dial func(context.Context, string, string) (net.Conn, error)) {
	of(sub).transport.DialContext = dial
}

// CloseIdle closes the connections that a webhook keeps.
func CloseIdle(sub subscriber.Subscriber) { of(sub).transport.CloseIdleConnections() }
