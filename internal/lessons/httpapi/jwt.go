package httpapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
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

// JWTOptions names the keys that tokens are verified with, exactly one of Secret and JWKS, and what tokens must say.
type JWTOptions struct {
	// Secret is a shared HS256 secret of at least 32 bytes, or a safefile.Live text: then the file is read for each
	// token, because a secret in a file is rotated while the program runs.
	Secret string
	// JWKS is a JSON Web Key Set of public keys: an https URL, on loopback also http, or a file.
	JWKS string
	// Audience and Issuer are what aud and iss of a token must be. Both are required with JWKS, whose keys sign tokens
	// for other services too; with a secret "" accepts any.
	Audience, Issuer string
	Log              *slog.Logger
	// Registry takes the metrics; nil keeps them nowhere.
	Registry prometheus.Registerer
}

// NewJWTAuth returns an Auth that wants "Authorization: Bearer" with a JSON Web Token that is signed
// with one of the keys, has not expired (a token without exp is refused), and whose sub is the user id.
//
// A key set is read once before NewJWTAuth returns, and then every 15 minutes, and when a token names
// an unknown key, until ctx ends. If a later read fails or brings no key, the keys known so far stay in
// use and the log says so.
func NewJWTAuth(ctx context.Context, o JWTOptions) (Auth, error) {
	switch {
	case o.Secret == "" && o.JWKS == "":
		return nil, errors.New("jwt auth: no key to verify tokens with: " +
			"set WALPOST_JWT_SECRET or WALPOST_JWKS_URL, or WALPOST_AUTH=dev on your own machine")
	case o.Secret != "" && o.JWKS != "":
		return nil, errors.New("jwt auth: both WALPOST_JWT_SECRET and WALPOST_JWKS_URL are set: unset one")
	case o.Secret != "":
		if err := checkSecret(safefile.Latest(o.Secret)); err != nil {
			return nil, fmt.Errorf("jwt auth: %w", err)
		}
		return bearer(o, secretMethods, func(context.Context, *jwt.Token) (any, error) {
			secret := safefile.Latest(o.Secret)
			return []byte(secret), checkSecret(secret) // it may be written at this moment
		}), nil
	case o.Audience == "" || o.Issuer == "":
		return nil, errors.New("jwt auth: WALPOST_JWKS_URL needs WALPOST_JWT_AUDIENCE and WALPOST_JWT_ISSUER, " +
			"because its keys sign tokens for other services too: set them to aud and iss of the tokens that are meant for this API")
	}
	keys, err := newKeySet(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("jwt auth: public keys: %w", err)
	}
	go keys.run(ctx)
	return bearer(o, publicMethods, keys.keysOf), nil
}

func checkSecret(secret string) error {
	if len(secret) < minSecret {
		return fmt.Errorf("WALPOST_JWT_SECRET has %d bytes, and HS256 needs at least %d: make one with  openssl rand -hex 32",
			len(secret), minSecret)
	}
	return nil
}

func bearer(o JWTOptions, methods []string, keys func(context.Context, *jwt.Token) (any, error)) Auth {
	options := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding()}
	if o.Audience != "" {
		options = append(options, jwt.WithAudience(o.Audience))
	}
	if o.Issuer != "" {
		options = append(options, jwt.WithIssuer(o.Issuer))
	}
	parser := jwt.NewParser(options...)
	return func(r *http.Request) (int64, error) {
		values := r.Header.Values("Authorization")
		if len(values) != 1 {
			return 0, errors.New("header Authorization must be given once")
		}
		scheme, token, _ := strings.Cut(values[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return 0, errors.New("header Authorization is not of the scheme Bearer")
		}
		// A map has the names as the token writes them. A struct would take "SUB" for sub.
		claims := jwt.MapClaims{}
		_, err := parser.ParseWithClaims(strings.TrimSpace(token), claims, func(t *jwt.Token) (any, error) {
			if err := checkHeader(t); err != nil {
				return nil, err
			}
			return keys(r.Context(), t)
		})
		if err != nil {
			return 0, err
		}
		subject, err := claims.GetSubject()
		if err != nil {
			return 0, err
		}
		user, err := parseUser(subject)
		if err != nil {
			return 0, fmt.Errorf("sub of the token: %w", err)
		}
		return user, nil
	}
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

// Token makes an HS256 token for a user that is valid from now for ttl, with the audience and issuer of the options.
func Token(o JWTOptions, userID int64, ttl time.Duration) (string, error) {
	if err := checkSecret(o.Secret); err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	if userID <= 0 {
		return "", fmt.Errorf("make token: user %d is not positive", userID)
	}
	if ttl <= 0 {
		return "", fmt.Errorf("make token: lifetime %s is not positive", ttl)
	}
	now := time.Now()
	claims := jwt.RegisteredClaims{
		Subject:   strconv.FormatInt(userID, 10),
		Issuer:    o.Issuer,
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(ttl)),
	}
	if o.Audience != "" {
		claims.Audience = jwt.ClaimStrings{o.Audience}
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(o.Secret))
}
