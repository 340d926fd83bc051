package bearer

import (
	"bytes"
	"crypto/rsa"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/bearer/bearertest"
)

func sign(t *testing.T, key *rsa.PrivateKey, kid string) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"sub": "42", "exp": time.Now().Add(time.Hour).Unix(), "aud": "walpost", "iss": "https://id.example",
	})
	token.Header["kid"] = kid
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func withJWKS(jwks string) Options {
	return Options{JWKS: jwks, Audience: "walpost", Issuer: "https://id.example", Log: slog.New(slog.DiscardHandler)}
}

// S-03: a provider that answers nonsense takes nothing away, and costs neither memory nor time.
func TestKeys_goodOnesStayWhateverTheProviderAnswers(t *testing.T) {
	key := bearertest.RSAKey(t)
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	p := bearertest.NewProvider(t, bearertest.KeySet("a", &key.PublicKey))
	options := withJWKS(p.URL)
	options.Log, options.Registry = slog.New(slog.NewTextHandler(&log, nil)), registry
	keys, err := newKeySet(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	verifier := newVerifier(options, publicMethods, keys.keysOf)
	token := sign(t, key, "a")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, bearertest.KeySet("evil", &bearertest.RSAKey(t).PublicKey))
	}))
	defer elsewhere.Close()
	failures := 0
	for name, answer := range map[string]http.HandlerFunc{
		"no key":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys": []}`) },
		"another":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"error": "maintenance"}`) },
		"no JSON":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) },
		"an error":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusServiceUnavailable) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"no end": func(w http.ResponseWriter, r *http.Request) {
			block := bytes.Repeat([]byte(" "), 64<<10)
			for r.Context().Err() == nil {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		},
		"no end of gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "\x1f\x8b\x08")
		},
	} {
		p.AnswerBy(answer)
		keys.refresh(t.Context())
		failures++
		if got := counted(t, registry, "walpost_jwks_failures_total"); got != float64(failures) {
			t.Errorf("%s: %g failures are counted, want %d", name, got, failures)
		}
		if _, err := verifier.Verify(t.Context(), token); err != nil {
			t.Errorf("%s: the key of before is gone: %v", name, err)
		}
	}
	if got := strings.Count(log.String(), "known keys stay in use"); got != failures {
		t.Errorf("%d failures are in the log, want %d:\n%s", got, failures, log.String())
	}
	p.AnswerWith(bearertest.KeySet("b", &key.PublicKey))
	keys.refresh(t.Context())
	if _, err := verifier.Verify(t.Context(), token); err == nil {
		t.Error("a key that was withdrawn is still in use")
	}
	if !strings.Contains(log.String(), "is read again") {
		t.Errorf("the log does not say that it works again:\n%s", log.String())
	}
}

func TestKeys_ofASlowProviderAreGivenUp(t *testing.T) {
	key := bearertest.RSAKey(t)
	p := bearertest.NewProvider(t, bearertest.KeySet("a", &key.PublicKey))
	keys, err := newKeySet(t.Context(), withJWKS(p.URL))
	if err != nil {
		t.Fatal(err)
	}
	provider := newKeyFetcher(p.URL)
	if provider.client.Timeout != keysTimeout {
		t.Errorf("the time limit is %s, want %s", provider.client.Timeout, keysTimeout)
	}
	provider.client.Timeout = 50 * time.Millisecond
	keys.read = provider.fetch
	p.AnswerBy(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil { // a byte now and then would hold it for ever
			fmt.Fprint(w, " ")
			w.(http.Flusher).Flush()
			<-time.After(time.Millisecond)
		}
	})
	keys.refresh(t.Context())
	if keys.failed != 1 {
		t.Errorf("%d failures, want 1", keys.failed)
	}
}

func counted(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}
