// Package bearer verifies the bearer tokens of the program's HTTP servers: JSON Web Tokens that are signed with a shared
// secret, or with keys of a JSON Web Key Set. It says who signed what, and never what that allows: a server decides on the
// claims. The keys of a set are in jwks.go.
package bearer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/strictjson"
)

// leeway forgives clocks that are a little apart.
const leeway = 30 * time.Second

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
