package httpapi

import (
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/backendstart/walpost/internal/bearer/bearertest"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/testdb"
)

const testSecret = "0123456789abcdef0123456789abcdef"

func sign(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims, kid string) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	if kid != "" {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// claims are those of a good token, also with public keys.
func claims(sub any) jwt.MapClaims {
	return jwt.MapClaims{"sub": sub, "exp": time.Now().Add(time.Hour).Unix(), "aud": "walpost", "iss": "https://id.example"}
}

func withJWKS(jwks string) JWTOptions {
	return JWTOptions{JWKS: jwks, Audience: "walpost", Issuer: "https://id.example", Log: slog.New(slog.DiscardHandler)}
}

func userOf(auth Auth, token string) (int64, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return auth(r)
}

func secretAuth(t *testing.T) Auth {
	t.Helper()
	auth, err := NewJWTAuth(t.Context(), JWTOptions{Secret: testSecret, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

func TestJWTAuth_knowsTheUserOfAGoodToken(t *testing.T) {
	token, err := Token(JWTOptions{Secret: testSecret}, 42, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := userOf(secretAuth(t), token); got != 42 || err != nil {
		t.Errorf("user is %d, %v; want 42", got, err)
	}
}

func TestJWTAuth_refusesBadTokens(t *testing.T) {
	auth := secretAuth(t)
	secret := []byte(testSecret)
	hs := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, secret, c, "") }
	expired := jwt.MapClaims{"sub": "42", "exp": time.Now().Add(-time.Hour).Unix()}
	early := claims("42")
	early["nbf"] = time.Now().Add(time.Hour).Unix()
	good := hs(claims("42"))
	tests := []struct{ name, token string }{
		{"empty", ""},
		{"no token", "abc"},
		{"alg none", sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims("42"), "")},
		{"HS512", sign(t, jwt.SigningMethodHS512, secret, claims("42"), "")},
		{"RS256", sign(t, jwt.SigningMethodRS256, bearertest.RSAKey(t), claims("42"), "")},
		{"other secret", sign(t, jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), claims("42"), "")},
		{"signature cut off", good[:strings.LastIndex(good, ".")+1]},
		{"expired", hs(expired)},
		{"no exp", hs(jwt.MapClaims{"sub": "42"})},
		{"not yet valid", hs(early)},
		{"no sub", hs(jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()})},
		{"sub 0", hs(claims("0"))},
		{"sub -1", hs(claims("-1"))},
		{"sub +1", hs(claims("+1"))},
		{"sub 042", hs(claims("042"))},
		{"sub 1.0", hs(claims("1.0"))},
		{"sub with a space", hs(claims(" 42"))},
		{"sub abc", hs(claims("abc"))},
		{"sub beyond int64", hs(claims("9223372036854775808"))},
		{"sub huge", hs(claims(strings.Repeat("9", 4000)))},
		{"sub a number", hs(claims(42))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if user, err := userOf(auth, test.token); err == nil {
				t.Errorf("it was taken for user %d", user)
			}
		})
	}
}

func TestJWTAuth_refusesOtherSchemesAndSeveralHeaders(t *testing.T) {
	auth := secretAuth(t)
	good := sign(t, jwt.SigningMethodHS256, []byte(testSecret), claims("42"), "")
	tests := []struct {
		name   string
		values []string
		want   int64
	}{
		{"bearer in lower case", []string{"bearer " + good}, 42},
		{"none", nil, 0},
		{"no scheme", []string{good}, 0},
		{"Basic", []string{"Basic " + good}, 0},
		{"two", []string{"Bearer " + good, "Bearer " + good}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header["Authorization"] = test.values
			if got, err := auth(r); got != test.want || (err == nil) != (test.want > 0) {
				t.Errorf("user is %d, %v; want %d", got, err, test.want)
			}
		})
	}
}

func TestJWTAuth_readsPublicKeysFromAURLAndFollowsTheirRotation(t *testing.T) {
	first, second := bearertest.RSAKey(t), bearertest.RSAKey(t)
	p := bearertest.NewProvider(t, bearertest.KeySet("a", &first.PublicKey))
	auth, err := NewJWTAuth(t.Context(), withJWKS(p.URL))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := userOf(auth, sign(t, jwt.SigningMethodRS256, first, claims("42"), "a")); got != 42 || err != nil {
		t.Errorf("user is %d, %v; want 42", got, err)
	}

	// The classic confusion: HS256 with the public key as its secret. And other bad ones.
	public := pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&first.PublicKey)})
	for name, token := range map[string]string{
		"HS256 with the public key":     sign(t, jwt.SigningMethodHS256, public, claims("42"), "a"),
		"HS256 with the modulus":        sign(t, jwt.SigningMethodHS256, first.N.Bytes(), claims("42"), "a"),
		"none":                          sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims("42"), "a"),
		"another key under this kid":    sign(t, jwt.SigningMethodRS256, second, claims("42"), "a"),
		"another key without kid":       sign(t, jwt.SigningMethodRS256, second, claims("42"), ""),
		"expired, with the right key":   sign(t, jwt.SigningMethodRS256, first, jwt.MapClaims{"sub": "42", "exp": 1}, "a"),
		"without exp, with a right key": sign(t, jwt.SigningMethodRS256, first, jwt.MapClaims{"sub": "42"}, "a"),
	} {
		if user, err := userOf(auth, token); err == nil {
			t.Errorf("%s: taken for user %d", name, user)
		}
	}

	p.AnswerWith(bearertest.KeySet("b", &second.PublicKey))
	if got, err := userOf(auth, sign(t, jwt.SigningMethodRS256, second, claims("43"), "b")); got != 43 || err != nil {
		t.Errorf("after the rotation user is %d, %v; want 43", got, err)
	}
}

func TestJWTAuth_readsPublicKeysFromAFile(t *testing.T) {
	key := bearertest.RSAKey(t)
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, []byte(bearertest.KeySet("a", &key.PublicKey)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, "file://" + file} {
		auth, err := NewJWTAuth(t.Context(), withJWKS(name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := userOf(auth, sign(t, jwt.SigningMethodRS256, key, claims("42"), "a")); got != 42 || err != nil {
			t.Errorf("%s: user is %d, %v; want 42", name, got, err)
		}
	}
}

// S-133: a secret, and public keys, in a file are those of this moment.
func TestJWTAuth_readsAFileAgainWhenItsKeysAreRotated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const next = "fedcba9876543210fedcba9876543210"
	write(testSecret)
	auth, err := NewJWTAuth(t.Context(), JWTOptions{Secret: safefile.Live(file, testSecret), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	write(next + "\n")
	for secret, want := range map[string]bool{testSecret: false, next: true} {
		if _, err := userOf(auth, sign(t, jwt.SigningMethodHS256, []byte(secret), claims("42"), "")); (err == nil) != want {
			t.Errorf("after the rotation a token of %q: %v", secret, err)
		}
	}
	write("") // it is written at this moment
	if _, err := userOf(auth, sign(t, jwt.SigningMethodHS256, []byte(""), claims("42"), "")); err == nil {
		t.Error("a token of an empty secret is taken")
	}

	first, second := bearertest.RSAKey(t), bearertest.RSAKey(t)
	write(bearertest.KeySet("a", &first.PublicKey))
	if auth, err = NewJWTAuth(t.Context(), withJWKS(file)); err != nil {
		t.Fatal(err)
	}
	write(bearertest.KeySet("b", &second.PublicKey))
	if got, err := userOf(auth, sign(t, jwt.SigningMethodRS256, second, claims("43"), "b")); got != 43 || err != nil {
		t.Errorf("after the rotation user is %d, %v; want 43", got, err)
	}
}

func TestNewJWTAuth_saysWhatToSet(t *testing.T) {
	broken := httptest.NewServer(http.NotFoundHandler())
	defer broken.Close()
	tests := []struct {
		name    string
		options JWTOptions
		want    string
	}{
		{"no key", JWTOptions{}, "set WALPOST_JWT_SECRET or WALPOST_JWKS_URL"},
		{"no audience", JWTOptions{JWKS: "https://id.example/keys", Issuer: "https://id.example"}, "WALPOST_JWT_AUDIENCE"},
		{"no issuer", JWTOptions{JWKS: "https://id.example/keys", Audience: "walpost"}, "WALPOST_JWT_ISSUER"},
		{"http", withJWKS("http://id.example/keys"), "use https"},
		{"a device", withJWKS("/dev/zero"), "no regular file"},
		{"both keys", JWTOptions{Secret: testSecret, JWKS: "x"}, "unset one"},
		{"short secret", JWTOptions{Secret: "short"}, "openssl rand"},
		{"no such file", withJWKS("/nowhere/keys.json"), "/nowhere/keys.json"},
		{"password in the URL", withJWKS("https://u:sesame@example.test/keys"), "must not carry"},
		{"URL without keys", withJWKS(broken.URL), broken.URL},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.options.Log = slog.New(slog.DiscardHandler)
			_, err := NewJWTAuth(t.Context(), test.options)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error is %v, want one with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "sesame") {
				t.Errorf("error shows the password: %v", err)
			}
		})
	}
}

func TestToken_refusesWhatNoAPIWouldTake(t *testing.T) {
	for _, test := range []struct {
		secret string
		user   int64
		ttl    time.Duration
	}{{"short", 42, time.Hour}, {testSecret, 0, time.Hour}, {testSecret, -1, time.Hour}, {testSecret, 42, 0}} {
		if token, err := Token(JWTOptions{Secret: test.secret}, test.user, test.ttl); err == nil {
			t.Errorf("Token(%d bytes, %d, %s) is %q, want an error", len(test.secret), test.user, test.ttl, token)
		}
	}
}

func TestDevAuth_refusesToListenBeyondLoopback(t *testing.T) {
	tests := []struct {
		listen string
		fine   bool
	}{
		{"127.0.0.1:8080", true}, {"127.1.2.3:0", true}, {"localhost:8080", true}, {"[::1]:8080", true}, {"[::ffff:127.0.0.1]:80", true},
		{":8080", false}, {"0.0.0.0:8080", false}, {"[::]:8080", false}, {"192.168.1.5:80", false}, {"10.0.0.1:80", false},
		{"example.test:80", false}, {"localhost.example.test:80", false}, {"127.0.0.1", false}, {"", false},
	}
	for _, test := range tests {
		if _, err := NewDevAuth(test.listen); (err == nil) != test.fine {
			t.Errorf("NewDevAuth(%q) gives %v, fine should be %t", test.listen, err, test.fine)
		}
	}
}

func TestDevAuth_takesOnlyAPositiveUser(t *testing.T) {
	auth, err := NewDevAuth("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		values []string
		want   int64
	}{{[]string{"42"}, 42}, {nil, 0}, {[]string{""}, 0}, {[]string{"0"}, 0}, {[]string{"-1"}, 0}, {[]string{"abc"}, 0},
		{[]string{"9223372036854775807"}, 9223372036854775807}, {[]string{"9223372036854775808"}, 0}, {[]string{"1", "2"}, 0}} {
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/", nil)
		r.Header["X-User-Id"] = test.values
		if got, err := auth(r); got != test.want || (err == nil) != (test.want > 0) {
			t.Errorf("X-User-ID %q: user is %d, %v; want %d", test.values, got, err, test.want)
		}
	}
}

// S-04: a page of another site makes the browser of a developer send requests to loopback.
func TestDevAuth_keepsPagesOfOtherSitesOut(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	for name, test := range map[string]struct {
		host   string
		header []string
		want   int
	}{
		"a program":                      {"127.0.0.1:8080", nil, http.StatusOK},
		"a program, by name":             {"localhost:8080", nil, http.StatusOK},
		"a program, by IPv6":             {"[::1]:8080", nil, http.StatusOK},
		"its own page of documentation":  {"127.0.0.1:8080", []string{"Origin", "http://127.0.0.1:8080", "Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		"a page of another site":         {"127.0.0.1:8080", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"a page that names no origin":    {"127.0.0.1:8080", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"a page of another local port":   {"127.0.0.1:8080", []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		"a page that a person opens":     {"127.0.0.1:8080", []string{"Sec-Fetch-Site", "none"}, http.StatusOK},
		"a page in an older browser":     {"127.0.0.1:8080", []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		"a page of another port":         {"127.0.0.1:8080", []string{"Origin", "http://127.0.0.1:3000"}, http.StatusForbidden},
		"a page without an origin":       {"127.0.0.1:8080", []string{"Origin", "null"}, http.StatusForbidden},
		"a name that leads to loopback":  {"evil.example:8080", nil, http.StatusForbidden},
		"that name as origin":            {"evil.example:8080", []string{"Origin", "http://evil.example:8080", "Sec-Fetch-Site", "same-origin"}, http.StatusForbidden},
		"what a proxy forwards":          {"127.0.0.1:8080", []string{"X-Forwarded-For", "10.1.1.1"}, http.StatusForbidden},
		"what a silent proxy forwards":   {"127.0.0.1:8080", []string{"Via", "1.1 proxy"}, http.StatusForbidden},
		"what a newer proxy forwards":    {"127.0.0.1:8080", []string{"Forwarded", "for=10.1.1.1"}, http.StatusForbidden},
		"a name that begins like ours":   {"localhost.evil.example", nil, http.StatusForbidden},
		"an address that begins so, too": {"127.0.0.1.evil.example", nil, http.StatusForbidden},
	} {
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			db.Exec("DELETE FROM public.lesson_progress")
			r := httptest.NewRequest(method, "http://"+test.host+"/api/progress", nil)
			if method == http.MethodPut {
				r = httptest.NewRequest(method, "http://"+test.host+lesson7, strings.NewReader(goodBody))
				r.Header.Set("Content-Type", "application/json")
			}
			r.Header.Set("X-User-ID", "42")
			for i := 0; i < len(test.header); i += 2 {
				r.Header.Set(test.header[i], test.header[i+1])
			}
			w := s.do(r)
			if w.Code != test.want {
				t.Errorf("%s: %s answers %d %s, want %d", name, method, w.Code, w.Body, test.want)
			}
			if n := db.Int("SELECT count(*) FROM public.lesson_progress"); test.want != http.StatusOK && n != 0 {
				t.Errorf("%s: it completes a lesson", name)
			}
		}
	}
}
