package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/config"
)

// askLimit is how long a running relay may take for an answer that it has in memory.
const askLimit = 3 * time.Second

// An answer is what the relay remembers: 10,000 attempts with the begin of an error each; a line is one of them.
const (
	maxAnswer = 64 << 20
	maxLine   = 1 << 20
)

// asked is a running relay, as a command reaches it over its ops API.
type asked struct {
	url    string // as it is said
	base   string // in front of a path
	token  config.Secret
	client *http.Client
	// withheld says why a token is not sent, "" where none is held back.
	withheld string
}

// askRelay finds the relay that the options name. A token goes only to an address from the same hand: one of the environment
// or the command line never to an address that a file names.
func askRelay(r *run, options config.Ask) (*asked, error) {
	base, err := options.URL()
	if err != nil {
		return nil, config.Invalid(err)
	}
	addressKey := "ops_listen"
	if options.OpsURL != "" {
		addressKey = "ops_url"
	}
	withheld := ""
	if line := r.parser.InFile(r.parsed, addressKey); line != "" && options.OpsToken != "" && r.parser.InFile(r.parsed, "ops_token") == "" {
		options.OpsToken = ""
		withheld = fmt.Sprintf("; the ops token was not sent, because the address comes from a file (%s): name it with --ops-url or WALPOST_OPS_URL", line)
	}
	dialer := &net.Dialer{Timeout: askLimit, KeepAlive: 15 * time.Second}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ResponseHeaderTimeout: askLimit}
	a := &asked{url: base, base: base, token: options.OpsToken, withheld: withheld, client: &http.Client{
		Transport: transport,
		// A token belongs to one address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if path, isSocket := strings.CutPrefix(base, "unix:"); isSocket {
		a.base = "http://walpost"
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
	}
	return a, nil
}

// readyPath is the one route whose answer 503 is a good answer too.
const readyPath = "/ready"

// refusedError is an answer that says no: asking again is no use.
type refusedError struct{ error }

// open asks for a path and returns the body of a good answer, which the caller closes.
func (a *asked) open(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, config.Invalid(err)
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token.Reveal())
	}
	response, err := a.client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // the rest is said below
		}
		return nil, fmt.Errorf("ask the relay at %s: %w", a.url, err)
	}
	if response.StatusCode == http.StatusOK || path == readyPath && response.StatusCode == http.StatusServiceUnavailable {
		return response.Body, nil
	}
	defer response.Body.Close()
	err = fmt.Errorf("ask the relay at %s: %s: %s", a.url, response.Status, problemOf(response.Body)+a.withheld)
	if response.StatusCode < http.StatusInternalServerError {
		err = refusedError{err}
	}
	return nil, err
}

// problemOf reads what an error answer says, whether walpost or a proxy has sent it.
func problemOf(body io.Reader) string {
	text, _ := io.ReadAll(io.LimitReader(body, 4096))
	var problem struct{ Detail string }
	if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
		return plain(problem.Detail, 300)
	}
	return plain(string(text), 100)
}

// get reads an answer in JSON.
func (a *asked) get(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	body, err := a.open(ctx, path, query)
	if err != nil {
		return err
	}
	defer body.Close()
	defer a.client.CloseIdleConnections()
	limited := &io.LimitedReader{R: body, N: maxAnswer}
	err = json.NewDecoder(limited).Decode(into)
	if err != nil && limited.N <= 0 {
		err = fmt.Errorf("an answer longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return fmt.Errorf("ask the relay at %s: it does not answer as walpost does: %w", a.url, err)
	}
	return nil
}

// anotherSlot is the error of an answer that is not about the slot that was meant.
func (a *asked) anotherSlot(got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("ask the relay at %s: it has slot %q, not %q: name the address of the right one with --ops-url", a.url, plain(got, 63), want)
}

// anotherServer is the error of an answer of a relay that reads a slot of the right name, and not that of the database.
func (a *asked) anotherServer(slot string) error {
	return fmt.Errorf("ask the relay at %s: it is not the leader here: it reads a slot %q of another server, or the lead changes just now: "+
		"name the address of the right one with --ops-url", a.url, slot)
}
