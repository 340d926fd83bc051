package websocket

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/bearer"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/access"
)

// How revisions of an aggregate follow each other.
const (
	// Consecutive revisions are 1, 2, 3: a missing one is found.
	Consecutive = "consecutive"
	// Increasing revisions may leave numbers out.
	Increasing = "increasing"
)

// Config is what walpost.yaml says of a hub apart from what every subscriber has.
type Config struct {
	// Listen is where clients connect to, host:port.
	Listen string `yaml:"listen,omitempty"`
	// Origins are patterns of hosts, or of scheme://host, whose pages may connect.
	Origins []string `yaml:"origins,omitempty"`
	// Tokens let their bearers follow every aggregate, unless Ask says otherwise.
	Tokens []config.Secret `yaml:"tokens,omitempty"`
	JWT    *JWT            `yaml:"jwt,omitempty"`
	// Cookie is the name of a cookie that may hold the token.
	Cookie string `yaml:"cookie,omitempty"`
	// Ask is a URL that decides who may follow what.
	Ask string `yaml:"ask,omitempty"`
	// Open lets everyone follow everything.
	Open bool `yaml:"open,omitempty"`
	// Revisions is Consecutive or Increasing.
	Revisions string `yaml:"revisions,omitempty"`
	// Clients is how many may be connected at a time.
	Clients int `yaml:"clients,omitempty"`
	// Queue and QueueBytes are what may wait for one client.
	Queue      int         `yaml:"queue,omitempty"`
	QueueBytes config.Size `yaml:"queue_bytes,omitempty"`
	// Ping is the time between two pings, and how long one may take.
	Ping config.Duration `yaml:"ping,omitempty"`
	// WriteTimeout is how long a client may take to receive a message.
	WriteTimeout config.Duration   `yaml:"write_timeout,omitempty"`
	TLS          *access.ServerTLS `yaml:"tls,omitempty"`
}

// JWT says which JSON Web Tokens are taken.
type JWT struct {
	// Secret is that of HS256; JWKS are public keys: a URL or a file.
	Secret config.Secret `yaml:"secret,omitempty"`
	JWKS   string        `yaml:"jwks,omitempty"`
	// Audience and Issuer are what aud and iss must be.
	Audience string `yaml:"audience,omitempty"`
	Issuer   string `yaml:"issuer,omitempty"`
	// Claim names the claim that lists what its bearer may follow; "" is everything.
	Claim string `yaml:"claim,omitempty"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{
		Revisions: Consecutive, Clients: 10_000, Queue: 256, QueueBytes: 256 << 10,
		Ping: config.Duration(30 * time.Second), WriteTimeout: config.Duration(10 * time.Second),
	}
}

// perClient is what a connected client costs apart from its queue, measured (docs/performance.md), with a margin.
const perClient = 64 << 10

// Memory is what the clients may take that are not slow.
func (c *Config) Memory() int64 { return int64(c.Clients) * perClient }

// shortestToken is how many characters a token must have, so that it cannot be guessed.
const shortestToken = 16

// Check implements config.Options.
func (c *Config) Check(s config.Subscriber, fail func(string, error)) {
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		fail("listen", fmt.Errorf("%.100q is not host:port: where clients connect to, as 127.0.0.1:8082", c.Listen))
	}
	for _, pattern := range c.Origins {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" || pattern == "*" || strings.HasSuffix(pattern, "/") {
			fail("origins", fmt.Errorf("%.100q is no host, as play.example or https://*.play.example; pages of everyone are refused", pattern))
		}
	}
	c.checkAccess(fail)
	switch {
	case c.Revisions != Consecutive && c.Revisions != Increasing:
		fail("revisions", fmt.Errorf("%q is none of %s, %s", c.Revisions, Consecutive, Increasing))
	case c.Revisions == Consecutive && len(s.Events) > 0:
		fail("revisions", fmt.Errorf("events leaves some out, so that what clients get is not consecutive: write %s", Increasing))
	}
	if s.Ordering == "none" {
		fail("ordering", errors.New("none would mix the revisions of an aggregate"))
	}
	for _, number := range []struct {
		key  string
		fine bool
	}{
		{"clients", c.Clients > 0}, {"queue", c.Queue > 0}, {"queue_bytes", c.QueueBytes > 0},
		{"ping", c.Ping > 0}, {"write_timeout", c.WriteTimeout > 0},
	} {
		if !number.fine {
			fail(number.key, errors.New("must be above 0"))
		}
	}
	c.TLS.Check(fail)
}

// checkAccess looks at who may follow.
func (c *Config) checkAccess(fail func(string, error)) {
	closed := len(c.Tokens) > 0 || c.JWT != nil || c.Ask != ""
	switch {
	case c.Open && closed:
		fail("open", errors.New("true lets everyone in, so tokens, jwt and ask have no meaning: leave them out, or open"))
	case !c.Open && !closed:
		fail("tokens", errors.New("are missing, and so are jwt and ask: no one could follow anything. open: true lets everyone follow everything"))
	}
	for _, token := range c.Tokens {
		if text := token.Reveal(); !safefile.IsLive(token.Live()) && len(text) < shortestToken {
			fail("tokens", fmt.Errorf("one has %d characters, use %d or more: openssl rand -hex 32", len(text), shortestToken))
		}
	}
	if c.JWT != nil {
		if err := c.bearerOptions().Check(); err != nil {
			fail("jwt", err)
		}
	}
	if c.Cookie != "" && (&http.Cookie{Name: c.Cookie}).Valid() != nil {
		fail("cookie", fmt.Errorf("%.100q is no name of a cookie", c.Cookie))
	}
	if u, err := url.Parse(c.Ask); c.Ask != "" && (err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Host == "" || u.User != nil) {
		fail("ask", errors.New("is no http or https URL without user and password"))
	}
}

// bearerOptions are those of the verifier of tokens.
func (c *Config) bearerOptions() bearer.Options {
	return bearer.Options{
		Secret: c.JWT.Secret.Live(), JWKS: c.JWT.JWKS, Audience: c.JWT.Audience, Issuer: c.JWT.Issuer,
		Names: bearer.Names{Secret: "jwt.secret", JWKS: "jwt.jwks", Audience: "jwt.audience", Issuer: "jwt.issuer"},
	}
}

// SecretTexts implements config.Options.
func (c *Config) SecretTexts() []string {
	var texts []string
	for _, token := range c.Tokens {
		texts = append(texts, token.Reveal())
	}
	if c.JWT != nil {
		texts = append(texts, c.JWT.Secret.Reveal())
	}
	return texts
}
