package websocket

import (
	"strconv"
	"time"
)

// ending is why a connection ends: a close code of the WebSocket protocol, and words for a person. Server-sent events
// tell the same in a last event named close. docs/destinations.md has the table.
type ending struct {
	code   int
	reason string
}

var (
	// left is that of a client that has gone, or does not answer: it is told nothing.
	left = ending{0, "the client has left"}
	// leadEnded sends clients to the relay that leads now.
	leadEnded = ending{1012, "this relay does not lead any more: connect again"}
	// unreadable is that the retained rows cannot be read.
	unreadable = ending{1013, "what was missed cannot be read now: connect again later"}
	expired    = ending{4001, "the token has expired"}
	// slow is that its queue was full.
	slow = ending{4008, "the client reads too slowly: connect again with the last revision"}
	// startAgain is that rows are gone which the client has not seen.
	startAgain = ending{4010, "what follows the last revision is not retained: read the state, then connect with its revision"}
)

var endings = []ending{left, leadEnded, unreadable, expired, slow, startAgain}

// label is the ending in metrics.
func (e ending) label() string {
	if e == left {
		return "left"
	}
	return strconv.Itoa(e.code)
}

// closeLimit is how long a client may take to say goodbye.
const closeLimit = time.Second
