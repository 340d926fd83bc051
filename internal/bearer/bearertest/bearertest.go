// Package bearertest is for tests of what verifies tokens with public keys: an identity provider on loopback, and keys for it.
package bearertest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// Provider is an identity provider on loopback. Its answer can be changed at any time, from any goroutine.
type Provider struct {
	*httptest.Server
	answer atomic.Value // http.HandlerFunc
}

// NewProvider starts a provider that answers with a key set. It ends with the test.
func NewProvider(t testing.TB, set string) *Provider {
	t.Helper()
	p := new(Provider)
	p.AnswerWith(set)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.answer.Load().(http.HandlerFunc)(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// AnswerWith makes the provider answer with a key set from now on.
func (p *Provider) AnswerWith(set string) {
	p.AnswerBy(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, set) })
}

// AnswerBy makes the provider answer by a function from now on.
func (p *Provider) AnswerBy(answer http.HandlerFunc) { p.answer.Store(answer) }

// RSAKey makes a key of 2048 bits.
func RSAKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// KeySet is a JSON Web Key Set of one key.
func KeySet(kid string, key *rsa.PublicKey) string {
	b64 := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys": [{"kty": "RSA", "use": "sig", "kid": %q, "n": %q, "e": %q}]}`,
		kid, b64(key.N.Bytes()), b64(big.NewInt(int64(key.E)).Bytes()))
}
