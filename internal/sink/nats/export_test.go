package nats

import "github.com/backendstart/walpost/internal/subscriber"

// Takes tells whether the stream of a delivery is known, with what it takes.
func (n *NATS) Takes(d subscriber.Delivery) bool {
	m, err := n.messageOf(d)
	return err == nil && n.session().streams.of(m.Subject) != nil
}

// BatchFrom sets how many messages a chain has that goes in a batch, whatever the stream.
func (n *NATS) BatchFrom(messages int) { n.longChain = messages }

// Written is how many messages the client has taken for the connection.
func (n *NATS) Written() uint64 { return n.session().conn.Stats().OutMsgs }
