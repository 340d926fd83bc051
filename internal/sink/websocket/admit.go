package websocket

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/backendstart/walpost/internal/bearer"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/httpserver"
)

// refusal says why a client may not follow.
type refusal struct {
	reason string // a label
	status int
	detail string
}

var (
	badRequest = &refusal{"request", http.StatusBadRequest, "ask for /events?aggregate=NAME, and for what follows a revision with last=N or Last-Event-ID"}
	foreign    = &refusal{"origin", http.StatusForbidden, "pages of this origin may not connect (origins)"}
	noToken    = &refusal{"token", http.StatusUnauthorized, "send a token: Authorization: Bearer, the subprotocol bearer.TOKEN, or the cookie"}
	badToken   = &refusal{"token", http.StatusUnauthorized, "the token is not valid here"}
	notAllowed = &refusal{"aggregate", http.StatusForbidden, "this token may not follow this aggregate"}
	askedAway  = &refusal{"away", http.StatusServiceUnavailable, "who may follow cannot be found out now"}
	standby    = &refusal{"standby", http.StatusServiceUnavailable, "this relay does not lead: connect to the one that does"}
	full       = &refusal{"full", http.StatusServiceUnavailable, "as many clients as are allowed are connected (clients)"}
)

var refusals = []*refusal{badRequest, foreign, noToken, badToken, notAllowed, askedAway, standby, full}

const (
	// askers and askLimit bound the questions that are under way.
	askers   = 32
	askLimit = 5 * time.Second
	// longestName is how long the name of an aggregate may be: as long as what events have.
	longestName = 520
	// protocol is the subprotocol of clients that offer one; bearerPrefix begins the one that holds a token.
	protocol     = "walpost"
	bearerPrefix = "bearer."
)

// request is what a client asks for.
type request struct {
	aggregate string
	revision  int64 // that it has; -1 for none
	expires   time.Time
}

// admit decides about a request.
func (h *Hub) admit(r *http.Request) (request, *refusal) {
	asked, refused := requestOf(r)
	if refused != nil {
		return asked, refused
	}
	if !h.knowsOrigin(r) {
		return asked, foreign
	}
	if h.Open {
		return asked, nil
	}
	token := h.tokenOf(r)
	if h.Ask != "" && len(h.Tokens) == 0 && h.JWT == nil {
		return asked, h.askService(r.Context(), asked.aggregate, token)
	}
	if token == "" {
		return asked, noToken
	}
	if !h.isOneOfTokens(token) {
		if asked.expires, refused = h.checkJWT(r.Context(), token, asked.aggregate); refused != nil {
			return asked, refused
		}
	}
	if h.Ask != "" {
		return asked, h.askService(r.Context(), asked.aggregate, token)
	}
	return asked, nil
}

func requestOf(r *http.Request) (request, *refusal) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	asked := request{aggregate: query.Get("aggregate"), revision: -1}
	if err != nil || len(query["aggregate"]) != 1 || len(asked.aggregate) > longestName {
		return asked, badRequest
	}
	last := query.Get("last")
	if id := r.Header.Get("Last-Event-ID"); id != "" { // newer than the URL of a stream that is opened again
		last = id
	}
	if last == "" {
		return asked, nil
	}
	asked.revision, err = strconv.ParseInt(last, 10, 64)
	if err != nil || asked.revision < 0 {
		return asked, badRequest
	}
	return asked, nil
}

// knowsOrigin tells whether the page that makes a browser ask may do so. A page that is not named counts only where it
// comes from this listener under a loopback name: another site can make its own name lead here. Programs that are no browsers
// name no page; where everyone may follow, the name in their URL must be one that we are known by, for the same reason.
func (h *Hub) knowsOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return !h.Open || httpserver.IsLoopback(r.Host) || h.matchesOrigin("", r.Host)
	}
	u, err := url.Parse(origins[0])
	if err != nil || len(origins) > 1 || u.Host == "" {
		return false
	}
	return strings.EqualFold(u.Host, r.Host) && httpserver.IsLoopback(r.Host) || h.matchesOrigin(u.Scheme, u.Host)
}

// matchesOrigin compares as websocket.AcceptOptions does.
func (h *Hub) matchesOrigin(scheme, host string) bool {
	return slices.ContainsFunc(h.Origins, func(pattern string) bool {
		against := host
		if wanted, _, found := strings.Cut(pattern, "://"); found {
			against = cmp.Or(scheme, wanted) + "://" + host
		}
		matched, err := path.Match(strings.ToLower(pattern), strings.ToLower(against))
		return err == nil && matched
	})
}

// tokenOf finds the token: a browser can send none in a header. It never stands in the URL, which is logged on the way.
func (h *Hub) tokenOf(r *http.Request) string {
	if token, err := bearer.TokenOf(r); err == nil {
		return strings.TrimSpace(token)
	}
	for _, offered := range subprotocols(r) {
		if token, found := strings.CutPrefix(offered, bearerPrefix); found {
			return token
		}
	}
	if h.Cookie != "" {
		if cookie, err := r.Cookie(h.Cookie); err == nil {
			return cookie.Value
		}
	}
	return ""
}

func subprotocols(r *http.Request) []string {
	var all []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(name))
		}
	}
	return all
}

// isOneOfTokens compares hashes, so that neither content nor length can be found out by timing.
func (h *Hub) isOneOfTokens(token string) bool {
	got, found := sha256.Sum256([]byte(token)), 0
	for _, known := range h.Tokens {
		text := known.Reveal()
		want := sha256.Sum256([]byte(text))
		if text != "" { // a file that is empty lets no one in
			found |= subtle.ConstantTimeCompare(got[:], want[:])
		}
	}
	return found == 1
}

// checkJWT verifies a token and returns when it expires.
func (h *Hub) checkJWT(ctx context.Context, token, aggregate string) (time.Time, *refusal) {
	if h.JWT == nil {
		return time.Time{}, badToken
	}
	verifier := h.verifier.get()
	if verifier == nil {
		return time.Time{}, askedAway
	}
	claims, err := verifier.Verify(ctx, token)
	if err != nil {
		h.Log.Debug("a token was refused", "err", err)
		return time.Time{}, badToken
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return time.Time{}, badToken
	}
	if h.JWT.Claim != "" && !allows(claims, h.JWT.Claim, aggregate) {
		return time.Time{}, notAllowed
	}
	return expires.Time, nil
}

// allows tells whether a claim, a text or a list of texts, names the aggregate; * is any run of characters.
func allows(claims jwt.MapClaims, claim, aggregate string) bool {
	named, isList := claims[claim].([]any)
	if !isList {
		named = []any{claims[claim]}
	}
	return slices.ContainsFunc(named, func(one any) bool {
		pattern, isText := one.(string)
		return isText && event.Matches(pattern, aggregate)
	})
}

func newAsker() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.MaxIdleConnsPerHost = askers
	return &http.Client{
		Transport: transport, Timeout: askLimit,
		// A redirect would carry the token to an address that was not configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// askService lets the URL decide: 2xx is yes, 401, 403 and 404 are no.
func (h *Hub) askService(ctx context.Context, aggregate, token string) *refusal {
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	case <-ctx.Done():
		return askedAway
	}
	status, err := h.askURL(ctx, aggregate, token)
	switch {
	case err != nil:
		h.Log.Warn("the URL that decides who may follow does not answer", "err", err)
		return askedAway
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusUnauthorized:
		return badToken
	case status == http.StatusForbidden || status == http.StatusNotFound:
		return notAllowed
	}
	h.Log.Warn("the URL that decides who may follow answers with something else", "status", status)
	return askedAway
}

func (h *Hub) askURL(ctx context.Context, aggregate, token string) (status int, err error) {
	u, err := url.Parse(h.Ask)
	if err != nil {
		return 0, err
	}
	query := u.Query()
	query.Set("aggregate", aggregate)
	u.RawQuery = query.Encode()
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	if token != "" {
		question.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := h.asker.Do(question)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the URL may have a secret in its query
		}
		return 0, err
	}
	_ = answer.Body.Close() // only the status counts
	return answer.StatusCode, nil
}
