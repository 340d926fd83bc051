// Package bearer verifies the bearer tokens of the program's HTTP servers: JSON Web Tokens that are signed with a shared
// secret, or with keys of a JSON Web Key Set. It says who signed what, and never what that allows: a server decides on the
// claims. The keys of a set are in jwks.go.
package bearer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/strictjson"
)

const (
	// minSecret is the length of a SHA-256 hash: a shorter key than that must not be used with HS256
	// (RFC 7518, section 3.2).
	minSecret = 32
	// leeway forgives clocks that are a little apart.
	leeway = 30 * time.Second
)

// Each kind of key has its own algorithms. If one list served both, someone could sign with HS256 and
// the public key as the secret. "none" is in neither.
var (
	secretMethods = []string{"HS256"}
	publicMethods = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

// Options name the keys that tokens are verified with, exactly one of Secret and JWKS, and what tokens must say.
type Options struct {
	// Secret is a shared HS256 secret of at least 32 bytes, or a safefile.Live text: then the file is read for each
	// token, because a secret in a file is rotated while the program runs.
	Secret string
	// JWKS is a JSON Web Key Set of public keys: an https URL, on loopback also http, or a file.
	JWKS string
	// Audience and Issuer are what aud and iss of a token must be. Both are required with JWKS, whose keys sign tokens
	// for other services too; with a secret "" accepts any.
	Audience, Issuer string
	// Names are what the options are called where they are set.
	Names Names
	Log   *slog.Logger
	// Registry takes the metrics; nil keeps them nowhere.
	Registry prometheus.Registerer
}

// Names are what people know the options by.
type Names struct{ Secret, JWKS, Audience, Issuer string }

// Check returns what is wrong with the options, nil for none. It reads no file and asks no one.
func (o Options) Check() error {
	switch {
	case o.Secret == "" && o.JWKS == "":
		return fmt.Errorf("no key to verify tokens with: set %s or %s", o.Names.Secret, o.Names.JWKS)
	case o.Secret != "" && o.JWKS != "":
		return fmt.Errorf("both %s and %s are set: unset one", o.Names.Secret, o.Names.JWKS)
	case o.Secret != "":
		return o.Names.CheckSecret(safefile.Latest(o.Secret))
	case o.Audience == "" || o.Issuer == "":
		return fmt.Errorf("%s needs %s and %s, because its keys sign tokens for other services too: "+
			"set them to aud and iss of the tokens that are meant for this API", o.Names.JWKS, o.Names.Audience, o.Names.Issuer)
	}
	return nil
}

// CheckSecret returns an error for a secret that is too short.
func (n Names) CheckSecret(secret string) error {
	if len(secret) < minSecret {
		return fmt.Errorf("%s has %d bytes, and HS256 needs at least %d: make one with  openssl rand -hex 32",
			n.Secret, len(secret), minSecret)
	}
	return nil
}

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	parser *jwt.Parser
	keys   func(context.Context, *jwt.Token) (any, error)
}

// New makes a verifier. A key set is read once before New returns, and then every 15 minutes, and when a token names
// an unknown key, until ctx ends. If a later read fails or brings no key, the keys known so far stay in
// use and the log says so.
func New(ctx context.Context, o Options) (*Verifier, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Secret != "" {
		return newVerifier(o, secretMethods, func(context.Context, *jwt.Token) (any, error) {
			secret := safefile.Latest(o.Secret)
			return []byte(secret), o.Names.CheckSecret(secret) // it may be written at this moment
		}), nil
	}
	keys, err := newKeySet(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("public keys: %w", err)
	}
	go keys.run(ctx)
	return newVerifier(o, publicMethods, keys.keysOf), nil
}

func newVerifier(o Options, methods []string, keys func(context.Context, *jwt.Token) (any, error)) *Verifier {
	options := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding()}
	if o.Audience != "" {
		options = append(options, jwt.WithAudience(o.Audience))
	}
	if o.Issuer != "" {
		options = append(options, jwt.WithIssuer(o.Issuer))
	}
	return &Verifier{jwt.NewParser(options...), keys}
}

// Verify returns the claims of a token that is signed with one of the keys, meant for this API and not expired. One
// without exp is refused.
func (v *Verifier) Verify(ctx context.Context, token string) (jwt.MapClaims, error) {
	// A map has the names as the token writes them. A struct would take "SUB" for sub.
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(strings.TrimSpace(token), claims, func(t *jwt.Token) (any, error) {
		if err := checkHeader(t); err != nil {
			return nil, err
		}
		return v.keys(ctx, t)
	})
	if err != nil {
		return nil, err
	}
	return claims, nil
}

// TokenOf returns the token of "Authorization: Bearer".
func TokenOf(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", errors.New("header Authorization must be given once")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errors.New("header Authorization is not of the scheme Bearer")
	}
	return token, nil
}

// checkHeader refuses what would make the token mean something else to another reader: extensions that must be
// understood (RFC 7515, section 4.1.11), of which there are none here, and names that are repeated.
func checkHeader(t *jwt.Token) error {
	if _, extended := t.Header["crit"]; extended {
		return errors.New("the header of the token has crit")
	}
	for _, part := range strings.Split(t.Raw, ".")[:2] {
		text, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			return err
		}
		if wrong := strictjson.CheckForeign(text); wrong != nil {
			return fmt.Errorf("the token: %w", wrong)
		}
	}
	return nil
}
