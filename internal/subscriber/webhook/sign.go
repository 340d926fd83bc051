package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Signing is a few lines of our own: the Go library of Standard Webhooks copies the body twice for each
// signature, and an event may have megabytes. The tests verify with that library.

// key is a secret with its HMACs ready to use.
type key struct{ pool sync.Pool }

type keys []*key

func newKey(secret []byte) *key {
	return &key{sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}}
}

var errSecret = errors.New(`is not "whsec_" and the base64 of 24 to 64 bytes; make one with: echo whsec_$(openssl rand -base64 32)`)

// parseSecret reads a secret as Standard Webhooks writes them. The error does not quote it.
func parseSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	if !ok {
		return nil, errSecret
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errSecret
	}
	return secret, nil
}

// sign sets the three headers of Standard Webhooks: the time and signatures are of this attempt, the id is
// the same at each. id must be legal in a header.
func (w *Webhook) sign(h *headers, id string, at time.Time, body []byte) {
	seconds := strconv.FormatInt(at.Unix(), 10)
	h.set("Webhook-Id", id)
	h.set("Webhook-Timestamp", seconds)
	if len(w.keys) > 0 {
		h.set("Webhook-Signature", w.keys.signatures(id+"."+seconds+".", body))
	}
}

// signatures has one for each key, so that a receiver that knows any of them can verify.
func (ks keys) signatures(prefix string, body []byte) string {
	const size = len("v1,") + 44 // base64 of 32 bytes
	text := make([]byte, 0, len(ks)*(size+1))
	var sum [sha256.Size]byte
	for i, k := range ks {
		mac := k.pool.Get().(hash.Hash)
		mac.Reset()
		mac.Write([]byte(prefix))
		mac.Write(body)
		if i > 0 {
			text = append(text, ' ')
		}
		text = append(text, "v1,"...)
		text = base64.StdEncoding.AppendEncode(text, mac.Sum(sum[:0]))
		k.pool.Put(mac)
	}
	return string(text)
}
