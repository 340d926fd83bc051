package webhook

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Problem is a mistake in the options.
type Problem struct {
	Key string // of the subscriber in the configuration
	Err error
}

// Problems tells all mistakes at once. It connects to nothing and asks no one.
func (o Options) Problems() []Problem {
	var problems []Problem
	add := func(key string, err error) {
		if err != nil {
			problems = append(problems, Problem{key, err})
		}
	}
	add("url", checkURL(o.URL, o.AllowPrivate))
	problems = append(problems, o.read().credentialProblems()...)
	if o.SignHeaders && len(o.Secrets) == 0 {
		add("sign_headers", errors.New("needs a secret to sign with"))
	}
	switch o.Format {
	case "", Payload, CloudEventsStructured:
	case CloudEvents:
		if o.Batch > 1 {
			add("format", fmt.Errorf("%s carries one event per request: take %s, or leave batch out", CloudEvents, CloudEventsStructured))
		}
	default:
		add("format", fmt.Errorf("%q is none of %s, %s, %s", o.Format, Payload, CloudEvents, CloudEventsStructured))
	}
	return problems
}

// credentialProblems are the mistakes in secrets and headers that were read.
func (o Options) credentialProblems() []Problem {
	var problems []Problem
	add := func(key string, err error) {
		if err != nil {
			problems = append(problems, Problem{key, err})
		}
	}
	for i, secret := range o.Secrets {
		_, err := parseSecret(secret)
		if err != nil && len(o.Secrets) > 1 {
			err = fmt.Errorf("the %d. of %d %w", i+1, len(o.Secrets), err)
		}
		add("secret", err)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		add("headers", checkHeader(name, o.Headers[name]))
	}
	return problems
}

// checkURL never quotes the address, which may hold a token.
func checkURL(text string, allowPrivate bool) error {
	if text == "" {
		return errors.New("is missing: where the events are posted to, as in https://billing.example/hooks")
	}
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("is not an http or https address, as in https://billing.example/hooks")
	}
	if u.User != nil {
		return errors.New("must not hold a user and password: put them into headers, as Authorization")
	}
	if u.Hostname() == "" {
		return errors.New("has no host, as in https://billing.example/hooks")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("has a port that is not between 1 and 65535")
		}
	}
	return checkHost(u.Hostname(), allowPrivate)
}

// ours are headers that the configuration must not set: they are made for each request, or belong to the
// connection.
var ours = []string{
	"Webhook-", "Walpost-", "Ce-", "X-Correlation-Id", "Traceparent", "Idempotency-Key",
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Expect", "Proxy-Connection",
}

// checkHeader never quotes the value, which may be a token.
func checkHeader(name, value string) error {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" // RFC 9110, section 5.6.2
	if name == "" || strings.Trim(name, token) != "" {
		return fmt.Errorf("%q is not a header's name", name)
	}
	canonical := http.CanonicalHeaderKey(name)
	for _, reserved := range ours {
		if canonical == reserved || strings.HasSuffix(reserved, "-") && strings.HasPrefix(canonical, reserved) {
			return fmt.Errorf("%s is set by walpost itself", name)
		}
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
		return fmt.Errorf("the value of %s holds a line break or another control character", name)
	}
	return nil
}
