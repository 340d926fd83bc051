package kafka

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// identityHeader has what is read back: by what the event is known, and by what it is recorded. A record that a person has
// asked for again has none: it is meant to come again.
const identityHeader = "walpost-identity"

// identity is a hash of an event's identity and its topic: where the configuration names another topic it is to be sent
// there. 16 bytes of SHA-256 are enough for two events that no one has made to have one
// hash: who could make them writes both.
type identity [16]byte

func identityOf(i event.Identity, topic string) (id identity) {
	var text []byte
	for _, part := range []string{topic, i.Source, i.ID, i.Occurrence} {
		text = binary.AppendUvarint(text, uint64(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	copy(id[:], sum[:])
	return id
}

// fromDebt stands before the position of a delivery from a debt.
const fromDebt = "owed-"

// headerOf is the header of a delivery.
func headerOf(d *subscriber.Delivery, topic string) kgo.RecordHeader {
	id := identityOf(d.Identity(), topic)
	position := d.Position.String()
	if d.Owed {
		position = fromDebt + position
	}
	return header(identityHeader, position+" "+base64.RawURLEncoding.EncodeToString(id[:]))
}

// readIdentity reads what headerOf writes.
func readIdentity(r *kgo.Record) (id identity, of sent, ok bool) {
	for _, h := range r.Headers {
		if h.Key != identityHeader {
			continue
		}
		position, text, _ := strings.Cut(string(h.Value), " ")
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(raw) != len(id) {
			return id, of, false
		}
		copy(id[:], raw)
		position, owed := strings.CutPrefix(position, fromDebt)
		return id, sent{partition{r.Topic, r.Partition}, r.Offset, position, owed}, true
	}
	return id, of, false
}
