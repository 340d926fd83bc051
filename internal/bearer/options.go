package bearer

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/safefile"
)

// Each kind of key has its own algorithms. If one list served both, someone could sign with HS256 and
// the public key as the secret. "none" is in neither.
var (
	secretMethods = []string{"HS256"}
	publicMethods = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

// minSecret is the length of a SHA-256 hash: a shorter key than that must not be used with HS256
// (RFC 7518, section 3.2).
const minSecret = 32

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
