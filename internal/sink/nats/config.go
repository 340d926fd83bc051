package nats

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/route"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/access"
)

// Formats of a message.
const (
	// Payload is the event's payload, byte for byte, with walpost's own headers.
	Payload = "payload"
	// CloudEvents is the payload with the event's attributes in ce- headers (binary mode).
	CloudEvents = "cloudevents"
	// CloudEventsStructured is a JSON object with attributes and payload.
	CloudEventsStructured = "cloudevents-structured"
)

// Config is what walpost.yaml says of NATS apart from what every subscriber has.
type Config struct {
	// Servers are some of the cluster, host:port or nats://host:port or tls://host:port; the others are found.
	Servers []string `yaml:"servers,omitempty"`
	// Subject is a template.
	Subject string `yaml:"subject,omitempty"`
	// Headers are templates, sent with each message. One can hold a key of the receivers.
	Headers map[string]config.Secret `yaml:"headers,omitempty"`
	Format  string                   `yaml:"format,omitempty"`
	TLS     *access.TLS              `yaml:"tls,omitempty"`
	Auth    *Auth                    `yaml:"auth,omitempty"`
	// InboxPrefix begins the subjects on which acknowledgements come; "" is _INBOX.
	InboxPrefix string `yaml:"inbox_prefix,omitempty"`
	// MaxSubjects is how many distinct subjects data can make.
	MaxSubjects config.Count `yaml:"max_subjects"`
	// LongestOutage is what Probe compares with the duplicate_window of a stream.
	LongestOutage config.Duration `yaml:"longest_outage"`
}

// Auth is the login: user and password, or a token, or the file of a user that nsc has made, or that of an NKey.
type Auth struct {
	User     config.Secret `yaml:"user,omitempty"`
	Password config.Secret `yaml:"password,omitempty"`
	Token    config.Secret `yaml:"token,omitempty"`
	// Credentials is a file with the JWT of a user and its seed.
	Credentials string `yaml:"credentials,omitempty"`
	// NKey is a file with the seed of an NKey.
	NKey string `yaml:"nkey,omitempty"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{Subject: "{type}", Format: Payload, MaxSubjects: 100_000, LongestOutage: config.Duration(time.Hour)}
}

// Defaults changes those of every subscriber: a leader of a stream is elected within ten seconds, which is no reason to
// record a window as debt.
func Defaults(s *config.Subscriber) { s.Standstill = config.Duration(10 * time.Second) }

// maxHeaders bounds what the configuration adds to each message.
const maxHeaders = 64

// Check implements config.Options.
func (c *Config) Check(_ config.Subscriber, fail func(string, error)) {
	if len(c.Servers) == 0 {
		fail("servers", errors.New("is missing: some servers of the cluster, as in [nats-1.example:4222]"))
	}
	for _, server := range c.Servers {
		if _, err := serverURL(server); err != nil {
			fail("servers", err)
		}
	}
	if _, err := route.Compile(c.Subject, route.NATS); err != nil {
		fail("subject", err)
	}
	if len(c.Headers) > maxHeaders {
		fail("headers", fmt.Errorf("there are %d, at most %d are sent", len(c.Headers), maxHeaders))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case isOurs(name):
			fail("headers", fmt.Errorf("%q is set by walpost itself, or means something to the server", name))
		case headerName(name) == "":
			fail("headers", fmt.Errorf("%q is no name of a header: letters, digits, '_' and '-'", name))
		}
		if _, err := c.header(name); err != nil {
			fail("headers", fmt.Errorf("%s: %w", name, err))
		}
	}
	if known := []string{Payload, CloudEvents, CloudEventsStructured}; !slices.Contains(known, c.Format) {
		fail("format", fmt.Errorf("%q is none of %s", c.Format, strings.Join(known, ", ")))
	}
	if c.InboxPrefix != "" {
		if err := route.NATS.Legal(c.InboxPrefix); err != nil {
			fail("inbox_prefix", err)
		}
	}
	if c.MaxSubjects == 0 {
		fail("max_subjects", errors.New("must be above 0"))
	}
	c.TLS.Check(fail)
	c.Auth.Check(fail)
}

// serverURL makes the URL of a server of host:port. One with a user in it is refused: it would be shown.
func serverURL(server string) (string, error) {
	text := server
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || strings.ContainsAny(server, "@, ") {
		return "", errors.New("a server is host:port, nats://host:port or tls://host:port; user and password stand in auth")
	}
	host, port, err := net.SplitHostPort(u.Host)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" || u.Scheme != "nats" && u.Scheme != "tls" || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" {
		return "", fmt.Errorf("%.100q is not host:port, nats://host:port or tls://host:port", server)
	}
	return u.Scheme + "://" + u.Host, nil
}

// Check calls fail for each key that is wrong. It reads no file: they may not be there yet.
func (a *Auth) Check(fail func(key string, err error)) {
	if a == nil {
		return
	}
	ways := 0
	for _, way := range []bool{a.User != "" || a.Password != "", a.Token != "", a.Credentials != "", a.NKey != ""} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		fail("auth", errors.New("needs one of: user with password, token, credentials, nkey"))
	}
	if (a.User == "") != (a.Password == "") {
		fail("auth.user", errors.New("user and password are named together"))
	}
	for _, file := range []struct{ key, path string }{{"auth.credentials", a.Credentials}, {"auth.nkey", a.NKey}} {
		if file.path != "" && !filepath.IsAbs(file.path) {
			fail(file.key, fmt.Errorf("%q is not absolute: it would depend on where the relay is started", file.path))
		}
	}
}

// SecretTexts are what must not be shown, as it is now.
func (a *Auth) SecretTexts() []string {
	if a == nil {
		return nil
	}
	return []string{a.Password.Reveal(), a.Token.Reveal()}
}

// header compiles the template of a header. A value without text is not sent.
func (c *Config) header(name string) (*route.Template, error) {
	text := safefile.AtStart(c.Headers[name].Live())
	template, err := route.Compile(text, route.Rule{MayBeEmpty: true, Legal: func(value string) error {
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7F }) {
			return errors.New("a header has no line breaks")
		}
		return nil
	}})
	return template, mask.New(text).Error(err)
}

// SecretTexts implements config.Options.
func (c *Config) SecretTexts() []string {
	texts := c.Auth.SecretTexts()
	for name := range c.Headers {
		if template, err := c.header(name); err == nil {
			if text, fixed := template.Fixed(); fixed {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// isOurs tells which headers the configuration must not set. Those of the server, Nats-Rollup for example, would let an
// event purge a stream.
func isOurs(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"walpost-", "webhook-", "ce-", "nats-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "" || name == "content-type" || name == "x-correlation-id" || name == "traceparent" || name == "status" || name == "description"
}

// headerName is a name as a header has it: letters, digits, '_' and '-'. "" where it has anything else.
func headerName(name string) string {
	if len(name) > 200 || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) {
		return ""
	}
	return name
}
