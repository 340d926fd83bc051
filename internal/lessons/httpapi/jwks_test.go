package httpapi

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/backendstart/walpost/internal/bearer/bearertest"
)

// S-03: the keys of a provider sign tokens for all its services, and what is not exact is not meant.
func TestJWTAuth_takesOnlyTokensThatAreMeantForIt(t *testing.T) {
	key := bearertest.RSAKey(t)
	p := bearertest.NewProvider(t, bearertest.KeySet("a", &key.PublicKey))
	auth, err := NewJWTAuth(t.Context(), withJWKS(p.URL))
	if err != nil {
		t.Fatal(err)
	}
	with := func(changes jwt.MapClaims) jwt.MapClaims {
		all := claims("42")
		for name, value := range changes {
			all[name] = value
			if value == nil {
				delete(all, name)
			}
		}
		return all
	}
	rs := func(c jwt.MapClaims, header ...any) string {
		token := jwt.NewWithClaims(jwt.SigningMethodRS256, c)
		token.Header["kid"] = "a"
		for i := 0; i < len(header); i += 2 {
			token.Header[header[i].(string)] = header[i+1]
		}
		signed, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	raw := func(header, payload string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		signature, err := jwt.SigningMethodRS256.Sign(text, key)
		if err != nil {
			t.Fatal(err)
		}
		return text + "." + base64.RawURLEncoding.EncodeToString(signature)
	}
	exp := time.Now().Add(time.Hour).Unix()
	const fineHeader = `{"alg":"RS256","kid":"a"}`
	for name, test := range map[string]struct {
		token string
		want  int64
	}{
		"a good one":                   {rs(claims("42")), 42},
		"without a key id":             {rs(claims("42"), "kid", nil), 42},
		"for several services":         {rs(with(jwt.MapClaims{"aud": []string{"other", "walpost"}})), 42},
		"for another service":          {rs(with(jwt.MapClaims{"aud": "other"})), 0},
		"for no service":               {rs(with(jwt.MapClaims{"aud": nil})), 0},
		"for a name that begins alike": {rs(with(jwt.MapClaims{"aud": "walpost2"})), 0},
		"of another issuer":            {rs(with(jwt.MapClaims{"iss": "https://id.example/other"})), 0},
		"of no issuer":                 {rs(with(jwt.MapClaims{"iss": nil})), 0},
		"with Sub":                     {rs(with(jwt.MapClaims{"sub": nil, "Sub": "42"})), 0},
		"with SUB and sub":             {rs(with(jwt.MapClaims{"SUB": "43"})), 42},
		"with EXP":                     {rs(with(jwt.MapClaims{"exp": nil, "EXP": exp})), 0},
		"with AUD":                     {rs(with(jwt.MapClaims{"aud": "other", "AUD": "walpost"})), 0},
		"with ISS":                     {rs(with(jwt.MapClaims{"iss": "other", "ISS": "https://id.example"})), 0},
		"with sub twice":               {raw(fineHeader, fmt.Sprintf(`{"sub":"43","sub":"42","exp":%d,"aud":"walpost","iss":"https://id.example"}`, exp)), 0},
		"with alg twice":               {raw(`{"alg":"HS256","alg":"RS256","kid":"a"}`, fmt.Sprintf(`{"sub":"42","exp":%d,"aud":"walpost","iss":"https://id.example"}`, exp)), 0},
		"with crit":                    {rs(claims("42"), "crit", []string{"exp"}, "exp", exp), 0},
		"with b64 and crit":            {rs(claims("42"), "crit", []string{"b64"}, "b64", true), 0},
		"with a key of its own":        {rs(claims("42"), "kid", "b", "jwk", map[string]any{"kty": "RSA"}), 0},
		"with a key id of a number":    {rs(claims("42"), "kid", 7), 0},
	} {
		if got, err := userOf(auth, test.token); got != test.want || (err == nil) != (test.want > 0) {
			t.Errorf("%s: user %d, %v; want %d", name, got, err, test.want)
		}
	}
}

func TestJWTAuth_withASecretLooksAtAudienceAndIssuerWhereTheyAreSet(t *testing.T) {
	options := JWTOptions{Secret: testSecret, Audience: "walpost", Issuer: "school", Log: slog.New(slog.DiscardHandler)}
	auth, err := NewJWTAuth(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	good, err := Token(options, 42, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Token(JWTOptions{Secret: testSecret, Audience: "other", Issuer: "school"}, 42, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if user, err := userOf(auth, good); user != 42 || err != nil {
		t.Errorf("its own token: user %d, %v", user, err)
	}
	if user, err := userOf(auth, other); err == nil {
		t.Errorf("a token for another service is taken for user %d", user)
	}
}

// S-03
func TestKeys_verifyOnlyWhatTheyAreFor(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	rsaFull := bearertest.RSAKey(t)
	rsaSet := func(more string) string {
		return strings.Replace(bearertest.KeySet("a", &rsaFull.PublicKey), `"use": "sig", `, more, 1)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := p256.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	ec := fmt.Sprintf(`{"keys": [{"kty": "EC", "crv": "P-256", "kid": "a", "x": %q, "y": %q}]}`, b64(point[1:33]), b64(point[33:]))
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed := fmt.Sprintf(`{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": %q}]}`, b64(public))
	secret := []byte(testSecret)
	oct := fmt.Sprintf(`{"kty": "oct", "kid": "a", "k": %q}`, b64(secret))
	for _, test := range []struct {
		name, set string
		method    jwt.SigningMethod
		key       any
		want      bool
	}{
		{"RSA, without use", rsaSet(""), jwt.SigningMethodRS256, rsaFull, true},
		{"RSA, PSS", rsaSet(""), jwt.SigningMethodPS256, rsaFull, true},
		{"RSA, to verify", rsaSet(`"key_ops": ["verify"], `), jwt.SigningMethodRS256, rsaFull, true},
		{"RSA, for encryption", rsaSet(`"use": "enc", `), jwt.SigningMethodRS256, rsaFull, false},
		{"RSA, to wrap keys", rsaSet(`"key_ops": ["wrapKey", "encrypt"], `), jwt.SigningMethodRS256, rsaFull, false},
		{"RSA, of another algorithm", rsaSet(`"alg": "RS512", `), jwt.SigningMethodRS256, rsaFull, false},
		{"RSA, for encryption by its algorithm", rsaSet(`"alg": "RSA-OAEP", `), jwt.SigningMethodRS256, rsaFull, false},
		{"RSA of 1024 bits", bearertest.KeySet("a", &weak.PublicKey), jwt.SigningMethodRS256, weak, false},
		{"P-256", ec, jwt.SigningMethodES256, p256, true},
		{"Ed25519", ed, jwt.SigningMethodEdDSA, private, true},
		{"a secret in the set", `{"keys": [` + oct + `]}`, jwt.SigningMethodHS256, secret, false},
		{"a secret and a key", `{"keys": [` + oct + `,` + strings.TrimPrefix(strings.TrimSuffix(ed, `]}`), `{"keys": [`) + `]}`, jwt.SigningMethodHS256, secret, false},
	} {
		p := bearertest.NewProvider(t, test.set)
		auth, err := NewJWTAuth(t.Context(), withJWKS(p.URL))
		if err != nil { // no key is left
			if test.want {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		if user, err := userOf(auth, sign(t, test.method, test.key, claims("42"), "a")); (err == nil) != test.want {
			t.Errorf("%s: user %d, %v; want it taken: %t", test.name, user, err, test.want)
		}
	}
}
