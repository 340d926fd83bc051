package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Signing is a few lines of our own: the Go library of Standard Webhooks copies the body twice for each
// signature, and an event may have megabytes. The tests verify with that library.

// keys are secrets with the state of their HMACs, ready to use.
type keys []*key

type key struct{ pool sync.Pool } // of *signer

// signer makes one signature at a time. Its buffers are used again: what is handed to a hash would be
// allocated again each time otherwise.
type signer struct {
	mac    hash.Hash
	prefix []byte
	sum    []byte
}

func newKey(secret []byte) *key {
	return &key{sync.Pool{New: func() any { return &signer{mac: hmac.New(sha256.New, secret)} }}}
}

// signatureSize is the length of one signature with the space before it.
const signatureSize = len(" v1,") + 44 // base64 of 32 bytes

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
// the same at each. id must be legal in a header. It comes last, because the headers may be signed, too.
func (w *Webhook) sign(h *headers, id string, at time.Time, body []byte) {
	h.set("Webhook-Id", id)
	var number [20]byte
	seconds := h.setText("Webhook-Timestamp", strconv.AppendInt(number[:0], at.Unix(), 10))
	keys := h.credentials.keys
	if len(keys) == 0 {
		return
	}
	var text [4 * signatureSize]byte // more keys than anyone rotates at a time go to the heap
	h.setText("Webhook-Signature", keys.appendSignatures(text[:0], body, id, ".", seconds, "."))
	if w.signHeaders {
		h.setText(headerSignature, keys.appendSignatures(text[:0], nil, signedHeaders(h.Header, id, seconds, body)))
	}
}

// headerSignature is the header with the signatures of the other headers.
const headerSignature = "Walpost-Signature"

// signedHeaders is what those signatures are of (docs/webhooks.md, "Signed headers"). Its first line has no full stop
// and that of Standard Webhooks' text has two, so that neither signature can be taken for the other.
func signedHeaders(header http.Header, id, seconds string, body []byte) string {
	var lines []string
	for name, values := range header {
		if name = strings.ToLower(name); isSigned(name) {
			lines = append(lines, name+":"+values[0])
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256(body)
	return strings.Join(slices.Concat([]string{"v1", id, seconds}, lines, []string{hex.EncodeToString(sum[:])}), "\n")
}

// isSigned tells which headers, in lower case, are signed. It goes by their names alone, so that one which is added on
// the way is missed as well. Not traceparent: proxies that trace replace it.
func isSigned(name string) bool {
	return strings.HasPrefix(name, "walpost-") || strings.HasPrefix(name, "ce-") || name == "x-correlation-id"
}

// appendSignatures appends one for each key of the parts and the body one after the other, so that a receiver that
// knows any of the keys can verify.
func (ks keys) appendSignatures(to, body []byte, parts ...string) []byte {
	for i, k := range ks {
		if i > 0 {
			to = append(to, ' ')
		}
		s := k.pool.Get().(*signer)
		to = s.appendSignature(to, body, parts)
		k.pool.Put(s)
	}
	return to
}

func (s *signer) appendSignature(to, body []byte, parts []string) []byte {
	s.prefix = s.prefix[:0]
	for _, part := range parts {
		s.prefix = append(s.prefix, part...)
	}
	s.mac.Reset()
	s.mac.Write(s.prefix)
	s.mac.Write(body)
	s.sum = s.mac.Sum(s.sum[:0])
	return base64.StdEncoding.AppendEncode(append(to, "v1,"...), s.sum)
}
