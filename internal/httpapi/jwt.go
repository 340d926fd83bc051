package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

const (
	// minSecret is the length of a SHA-256 hash: a shorter key than that must not be used with HS256
	// (RFC 7518, section 3.2).
	minSecret = 32
	// leeway forgives clocks that are a little apart.
	leeway = 30 * time.Second
)

// Each kind of key has its own algorithms. If one list served both, somebody could sign with HS256 and
// the public key as the secret. "none" is in neither.
var (
	secretMethods = []string{"HS256"}
	publicMethods = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

// JWTOptions names the keys that tokens are verified with: exactly one of the two.
type JWTOptions struct {
	// Secret is a shared HS256 secret of at least 32 bytes.
	Secret string
	// JWKS is a JSON Web Key Set of public keys: an http or https URL, or a file.
	JWKS string
	Log  *slog.Logger
}

// NewJWTAuth returns an Auth that wants "Authorization: Bearer" with a JSON Web Token that is signed
// with one of the keys, has not expired (a token without exp is refused), and whose sub is the user id.
//
// A JWKS URL is read once before NewJWTAuth returns, and then every 15 minutes, and when a token names
// an unknown key, until ctx ends. If a later read fails, the keys known so far stay in use and the log
// says so.
func NewJWTAuth(ctx context.Context, o JWTOptions) (Auth, error) {
	switch {
	case o.Secret == "" && o.JWKS == "":
		return nil, errors.New("jwt auth: no key to verify tokens with: " +
			"set WALPOST_JWT_SECRET or WALPOST_JWKS_URL, or WALPOST_AUTH=dev on your own machine")
	case o.Secret != "" && o.JWKS != "":
		return nil, errors.New("jwt auth: both WALPOST_JWT_SECRET and WALPOST_JWKS_URL are set: unset one")
	case o.Secret != "":
		if err := checkSecret(o.Secret); err != nil {
			return nil, fmt.Errorf("jwt auth: %w", err)
		}
		key := []byte(o.Secret)
		return bearer(secretMethods, func(*jwt.Token) (any, error) { return key, nil }), nil
	}
	keys, err := publicKeys(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("jwt auth: public keys: %w", err)
	}
	return bearer(publicMethods, keys.Keyfunc), nil
}

func checkSecret(secret string) error {
	if len(secret) < minSecret {
		return fmt.Errorf("WALPOST_JWT_SECRET has %d bytes, and HS256 needs at least %d: make one with  openssl rand -hex 32",
			len(secret), minSecret)
	}
	return nil
}

func publicKeys(ctx context.Context, o JWTOptions) (keyfunc.Keyfunc, error) {
	address, err := url.Parse(o.JWKS)
	if err != nil || (address.Scheme != "http" && address.Scheme != "https") {
		set, err := os.ReadFile(strings.TrimPrefix(o.JWKS, "file://"))
		if err != nil {
			return nil, err
		}
		keys, err := keyfunc.NewJWKSetJSON(set)
		if err != nil {
			return nil, fmt.Errorf("%s is no JSON Web Key Set: %w", o.JWKS, err)
		}
		return keys, nil
	}
	if address.User != nil {
		return nil, errors.New("WALPOST_JWKS_URL must not carry a user or password")
	}
	mustAnswer := false // at the start, so that a wrong address is an error and not a day of 401s
	return keyfunc.NewDefaultOverrideCtx(ctx, []string{o.JWKS}, keyfunc.Override{
		NoErrorReturnFirstHTTPReq: &mustAnswer,
		HTTPTimeout:               10 * time.Second,
		RefreshInterval:           15 * time.Minute,
		// Anybody can invent key ids: one look per half minute, and nobody waits for his turn.
		RefreshUnknownKID: rate.NewLimiter(rate.Every(30*time.Second), 1),
		RateLimitWaitMax:  time.Second,
		RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
			return func(_ context.Context, err error) {
				o.Log.Warn("reading the JSON Web Key Set failed, known keys stay in use", "url", o.JWKS, "err", err)
			}
		},
	})
}

func bearer(methods []string, key jwt.Keyfunc) Auth {
	parser := jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway))
	return func(r *http.Request) (int64, error) {
		values := r.Header.Values("Authorization")
		if len(values) != 1 {
			return 0, errors.New("header Authorization must be given once")
		}
		scheme, token, _ := strings.Cut(values[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return 0, errors.New("header Authorization is not of the scheme Bearer")
		}
		var claims jwt.RegisteredClaims
		if _, err := parser.ParseWithClaims(strings.TrimSpace(token), &claims, key); err != nil {
			return 0, err
		}
		user, err := parseUser(claims.Subject)
		if err != nil {
			return 0, fmt.Errorf("sub of the token: %w", err)
		}
		return user, nil
	}
}

// Token makes an HS256 token for a user that is valid from now for ttl.
func Token(secret string, userID int64, ttl time.Duration) (string, error) {
	if err := checkSecret(secret); err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	if userID <= 0 {
		return "", fmt.Errorf("make token: user %d is not positive", userID)
	}
	if ttl <= 0 {
		return "", fmt.Errorf("make token: lifetime %s is not positive", ttl)
	}
	now := time.Now()
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject:   strconv.FormatInt(userID, 10),
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(ttl)),
	}).SignedString([]byte(secret))
}
