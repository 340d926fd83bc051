package bearer

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/time/rate"

	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/safefile"
)

const (
	// maxKeySet and maxKeys are many times what a provider publishes.
	maxKeySet = 1 << 20
	maxKeys   = 100
	// Smaller RSA keys can be factored (NIST SP 800-131A); larger ones cost a request milliseconds.
	minRSABits, maxRSABits = 2048, 8192
	keysTimeout            = 10 * time.Second
	keysInterval           = 15 * time.Minute
	// Anyone can invent key ids: one look per half minute.
	unknownKeyInterval = 30 * time.Second
)

// curves have one algorithm each (RFC 7518, section 3.4).
var curves = map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}

// publicKey is a key of a JSON Web Key Set that may verify tokens.
type publicKey struct {
	id        string
	algorithm string // "" is any that fits the key
	key       any    // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// fits reports whether the key verifies tokens of this algorithm. The algorithm is what the token says, so it must
// never choose the kind of the key.
func (k publicKey) fits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm {
		return false
	}
	switch key := k.key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		return algorithm == curves[key.Curve.Params().Name]
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

// parseKeys reads a JSON Web Key Set (RFC 7517) and returns the keys that may verify a signature. Keys for other uses and
// of other kinds are left out, as section 5 of the RFC wants it; none at all is an error.
func parseKeys(body []byte) ([]publicKey, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	var keys []publicKey
	for _, jwk := range set.Keys[:min(len(set.Keys), maxKeys)] {
		if jwk.USE != "" && jwk.USE != jwkset.UseSig || len(jwk.KEYOPS) > 0 && !slices.Contains(jwk.KEYOPS, jwkset.KeyOpsVerify) {
			continue
		}
		jwk.X5C, jwk.X5T, jwk.X5TS256, jwk.X5U = nil, "", "", "" // the key is what counts, and nothing is fetched for it
		parsed, err := jwkset.NewJWKFromMarshal(jwk, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		key := publicKey{jwk.KID, jwk.ALG.String(), parsed.Key()}
		if rsaKey, isRSA := key.key.(*rsa.PublicKey); isRSA && (rsaKey.N.BitLen() < minRSABits || rsaKey.N.BitLen() > maxRSABits) {
			continue
		}
		if slices.ContainsFunc(publicMethods, key.fits) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("none of the keys (%d) in the JSON Web Key Set can verify a token", len(set.Keys))
	}
	return keys, nil
}

// keySet is the public keys that are in use. It is safe for concurrent use.
type keySet struct {
	place    string // an address or a file
	read     func(context.Context) ([]publicKey, error)
	log      *slog.Logger
	failures prometheus.Counter
	unknown  *rate.Limiter

	fetching sync.Mutex // one fetch at a time
	mu       sync.Mutex
	keys     []publicKey // guarded by mu
	failed   int         // fetches since the last good one; guarded by mu
}

// newKeySet reads the keys once, so that a wrong address is an error now and not a day of 401s.
func newKeySet(ctx context.Context, o Options) (*keySet, error) {
	k := &keySet{
		place: o.JWKS, log: o.Log, unknown: rate.NewLimiter(rate.Every(unknownKeyInterval), 1),
		failures: promauto.With(o.Registry).NewCounter(prometheus.CounterOpts{
			Name: "walpost_jwks_failures_total",
			Help: "Reads of the JSON Web Key Set that failed; the keys known so far stay in use.",
		}),
	}
	address, err := url.Parse(o.JWKS)
	switch {
	case err != nil || address.Scheme != "http" && address.Scheme != "https":
		k.read = func(context.Context) ([]publicKey, error) { return readKeys(o.JWKS) }
	case address.User != nil:
		return nil, fmt.Errorf("%s must not carry a user or password", o.Names.JWKS)
	case address.Scheme == "http" && !httpserver.IsLoopback(address.Hostname()):
		return nil, fmt.Errorf("%s %s: anyone on the way could put keys in: use https", o.Names.JWKS, o.JWKS)
	default:
		k.read = newKeyFetcher(o.JWKS).fetch
	}
	if k.keys, err = k.read(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// readKeys reads a file of keys.
func readKeys(file string) ([]publicKey, error) {
	body, err := safefile.Read(strings.TrimPrefix(file, "file://"), maxKeySet)
	if err != nil {
		return nil, err
	}
	keys, err := parseKeys(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return keys, nil
}

// keyFetcher reads the keys from an address.
type keyFetcher struct {
	url    string
	client *http.Client
}

func newKeyFetcher(address string) *keyFetcher {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = 64 << 10
	return &keyFetcher{address, &http.Client{
		Transport: transport,
		Timeout:   keysTimeout, // of the body, too
		// A redirect could leave https, and the address that was configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// run reads the keys at intervals until ctx ends.
func (k *keySet) run(ctx context.Context) {
	tick := time.NewTicker(keysInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.refresh(ctx)
		}
	}
}

// refresh reads the keys. An answer without a good key changes nothing: it is more likely a fault of the provider than
// the end of all its keys.
func (k *keySet) refresh(ctx context.Context) {
	k.fetching.Lock()
	defer k.fetching.Unlock()
	keys, err := k.read(ctx)
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil:
		k.failed++
		k.failures.Inc()
		k.log.Warn("reading the JSON Web Key Set failed, known keys stay in use", "url", k.place, "failures", k.failed, "err", err)
		return
	case k.failed > 0:
		k.log.Info("the JSON Web Key Set is read again", "url", k.place, "failures", k.failed)
	}
	k.keys, k.failed = keys, 0
}

func (f *keyFetcher) fetch(ctx context.Context) ([]publicKey, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json, application/jwk-set+json")
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", f.url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", f.url, err)
	case len(body) > maxKeySet:
		return nil, fmt.Errorf("%s answers more than %d bytes", f.url, maxKeySet)
	}
	keys, err := parseKeys(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.url, err)
	}
	return keys, nil
}

// find returns the keys that may verify a token: that of its key id, or without one all that fit.
func (k *keySet) find(id any, algorithm string) (fitting []jwt.VerificationKey, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		if id != nil && key.id != id {
			continue
		}
		known = true
		if key.fits(algorithm) {
			fitting = append(fitting, key.key)
		}
	}
	return fitting, known
}

// keysOf implements jwt.Keyfunc.
func (k *keySet) keysOf(ctx context.Context, token *jwt.Token) (any, error) {
	id := token.Header["kid"]
	if _, isText := id.(string); id != nil && !isText {
		return nil, errors.New("the key id of the token is no string")
	}
	fitting, known := k.find(id, token.Method.Alg())
	if !known && k.unknown.Allow() {
		k.refresh(ctx)
		fitting, _ = k.find(id, token.Method.Alg())
	}
	if len(fitting) == 0 {
		return nil, errors.New("no public key has the key id and the algorithm of the token")
	}
	return jwt.VerificationKeySet{Keys: fitting}, nil
}
