package webhook

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/subscriber"
)

// credentials are what requests are sent with until a file of the configuration changes. They are made whole, and never
// changed.
type credentials struct {
	keys   keys
	header http.Header // of every request
	mask   *mask.Mask  // of what is sent as a secret, signatures aside
}

// rereadAfter is how long what a file says of a secret is believed.
const rereadAfter = time.Second

// rotation gives the credentials of the moment: secrets and headers that stand in files are read again, because they
// are rotated while the program runs.
type rotation struct {
	options Options // as configured
	target  *url.URL
	live    bool // some of it stands in files

	mu     sync.Mutex
	readAt time.Time    // guarded by mu
	latest Options      // as read at readAt; guarded by mu
	now    *credentials // of the last latest that made sense; guarded by mu
	err    error        // why latest makes no sense; guarded by mu
}

func newRotation(o Options, target *url.URL) *rotation {
	r := &rotation{options: o, target: target, latest: o.read(), readAt: time.Now()}
	for _, text := range slices.Concat(o.Secrets, slices.Collect(maps.Values(o.Headers))) {
		r.live = r.live || safefile.IsLive(text)
	}
	r.now = newCredentials(r.latest, r.latest, target)
	return r
}

// current returns what a request is sent with now. That a file makes no sense is the receiver's absence: no event is
// given up for it.
func (r *rotation) current() (*credentials, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.live || time.Since(r.readAt) < rereadAfter {
		return r.now, r.err
	}
	r.readAt = time.Now()
	before := r.latest
	r.latest = r.options.read()
	if slices.Equal(before.Secrets, r.latest.Secrets) && maps.Equal(before.Headers, r.latest.Headers) {
		return r.now, r.err
	}
	r.err = nil
	if problems := r.latest.credentialProblems(); len(problems) > 0 {
		r.err = subscriber.Away(fmt.Errorf("what the file of %s holds now: %w", problems[0].Key, problems[0].Err))
		return r.now, r.err
	}
	r.now = newCredentials(r.latest, before, r.target)
	return r.now, nil
}

// newCredentials makes them of options that were read. before is what requests that are on their way were sent with: it
// is masked as well.
func newCredentials(o, before Options, target *url.URL) *credentials {
	c := &credentials{header: http.Header{}, mask: mask.New(slices.Concat(o.secrets(target), before.secrets(target))...)}
	for _, secret := range o.Secrets {
		key, _ := parseSecret(secret) // credentialProblems has looked at it
		c.keys = append(c.keys, newKey(key))
	}
	c.header.Set("User-Agent", "walpost")
	for name, value := range o.Headers {
		c.header.Set(name, value)
	}
	// An event is the same at each attempt, so a request may be sent once more when the receiver closed a
	// kept connection under it. The key tells net/http so; without a value it is not sent.
	c.header["Idempotency-Key"] = []string{}
	return c
}

// read returns the options with what their files hold now.
func (o Options) read() Options {
	secrets, headers := make([]string, len(o.Secrets)), make(map[string]string, len(o.Headers))
	for i, secret := range o.Secrets {
		secrets[i] = safefile.Latest(secret)
	}
	for name, value := range o.Headers {
		headers[name] = safefile.Latest(value)
	}
	o.Secrets, o.Headers = secrets, headers
	return o
}

// secrets are what a receiver must not make us store or show: keys, configured headers, and the parts of the URL that
// can be a token.
func (o Options) secrets(target *url.URL) []string {
	var secrets []string
	for _, secret := range o.Secrets {
		secrets = append(secrets, strings.TrimPrefix(secret, "whsec_"))
	}
	for _, value := range o.Headers {
		secrets = append(secrets, mask.InHeader(value)...)
	}
	return append(secrets, mask.InURL(target)...)
}
