package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/bearer"
)

// names are the variables by which people set the options.
var names = bearer.Names{
	Secret: "WALPOST_JWT_SECRET", JWKS: "WALPOST_JWKS_URL", Audience: "WALPOST_JWT_AUDIENCE", Issuer: "WALPOST_JWT_ISSUER",
}

// JWTOptions names the keys that tokens are verified with, exactly one of Secret and JWKS, and what tokens must say, as
// bearer.Options does.
type JWTOptions struct {
	Secret           string
	JWKS             string
	Audience, Issuer string
	Log              *slog.Logger
	// Registry takes the metrics; nil keeps them nowhere.
	Registry prometheus.Registerer
}

// NewJWTAuth returns an Auth that wants "Authorization: Bearer" with a JSON Web Token that a bearer.Verifier takes and whose
// sub is the user id. Keys are read until ctx ends.
func NewJWTAuth(ctx context.Context, o JWTOptions) (Auth, error) {
	if o.Secret == "" && o.JWKS == "" {
		return nil, errors.New("jwt auth: no key to verify tokens with: " +
			"set WALPOST_JWT_SECRET or WALPOST_JWKS_URL, or WALPOST_AUTH=dev on your own machine")
	}
	verifier, err := bearer.New(ctx, bearer.Options{
		Secret: o.Secret, JWKS: o.JWKS, Audience: o.Audience, Issuer: o.Issuer, Names: names, Log: o.Log, Registry: o.Registry,
	})
	if err != nil {
		return nil, fmt.Errorf("jwt auth: %w", err)
	}
	return func(r *http.Request) (int64, error) {
		token, err := bearer.TokenOf(r)
		if err != nil {
			return 0, err
		}
		claims, err := verifier.Verify(r.Context(), token)
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
	}, nil
}

// Token makes an HS256 token for a user that is valid from now for ttl, with the audience and issuer of the options.
func Token(o JWTOptions, userID int64, ttl time.Duration) (string, error) {
	if err := names.CheckSecret(o.Secret); err != nil {
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
