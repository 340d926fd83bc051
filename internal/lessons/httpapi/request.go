package httpapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/oklog/ulid/v2"

	"github.com/backendstart/walpost/internal/strictjson"
)

// maxCorrelationID bounds what a client can have us store and log with every event, in bytes.
const maxCorrelationID = 128

// traceParents is version 00 of W3C Trace Context. What does not match is ignored, as that
// specification wants it.
var traceParents = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// call is what we know about the request that a context belongs to.
type call struct {
	correlationID string
	traceParent   string // "" where there is none
	userID        int64  // 0 until authenticate has set it
}

type callKey struct{}

// callOf returns the call of a context that comes from observe.
func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// observe is around everything: it gives each request its correlation id and its deadline, turns a
// panic into a problem, counts, and logs.
func (a *api) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		c := &call{}
		wrong := c.read(r.Header)
		w.Header().Set("X-Correlation-Id", c.correlationID)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), callKey{}, c), a.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
		answer := &watched{ResponseWriter: w}

		defer func() {
			a.recover(answer, c, recover())
			elapsed := time.Since(start)
			a.metrics.observe(r.Pattern, answer.status, elapsed)
			if a.log.Enabled(ctx, slog.LevelDebug) {
				a.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", answer.status,
					"elapsed", elapsed, "user", c.userID, "correlation_id", c.correlationID)
			}
		}()
		if wrong != nil {
			writeProblem(answer, http.StatusBadRequest, "validation failed", wrong)
			return
		}
		next.ServeHTTP(answer, r)
	})
}

// recover answers for a handler that panicked; the server and the other requests go on.
func (a *api) recover(answer *watched, c *call, panicked any) {
	if panicked == nil {
		return
	}
	if panicked == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
		panic(panicked)
	}
	a.log.Error("request panicked", "panic", panicked, "correlation_id", c.correlationID, "stack", string(debug.Stack()))
	if answer.status == 0 {
		writeProblem(answer, http.StatusInternalServerError,
			"something went wrong on our side: the log has more under the correlation id of this answer")
	}
}

// read takes over the correlation id and the trace context of the client. Without a correlation id, or
// with one that must not be stored and logged, there is a new one.
func (c *call) read(header http.Header) *huma.ErrorDetail {
	if parent := header.Get("Traceparent"); traceParents.MatchString(parent) {
		c.traceParent = parent
	}
	given := header.Values("X-Correlation-Id")
	c.correlationID = ulid.MustNew(ulid.Now(), rand.Reader).String()
	wrong := &huma.ErrorDetail{Location: "header.X-Correlation-Id"}
	switch {
	case len(given) == 0 || len(given) == 1 && given[0] == "":
		return nil
	case len(given) > 1:
		wrong.Message = "given more than once"
	case len(given[0]) > maxCorrelationID:
		wrong.Message = fmt.Sprintf("longer than %d bytes", maxCorrelationID)
	case !utf8.ValidString(given[0]):
		wrong.Message = "is no valid UTF-8"
	case strings.ContainsFunc(given[0], func(r rune) bool { return !unicode.IsPrint(r) }):
		wrong.Message = "contains a character that cannot be printed"
	default:
		c.correlationID = given[0]
		return nil
	}
	return wrong
}

// authenticate refuses requests whose user Auth does not know.
func (a *api) authenticate(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	c := callOf(r.Context())
	user, err := a.Auth(r)
	var forbidden Forbidden
	if errors.As(err, &forbidden) {
		a.log.Debug("request refused", "err", err, "correlation_id", c.correlationID)
		writeProblem(w, http.StatusForbidden, forbidden.Error())
		return
	}
	if err != nil {
		a.log.Debug("request refused", "err", err, "correlation_id", c.correlationID)
		w.Header().Set("WWW-Authenticate", `Bearer realm="walpost"`)
		writeProblem(w, http.StatusUnauthorized, "no valid credentials")
		return
	}
	c.userID = user
	next(ctx)
}

// readBody reads the body of an operation that has one, and hands it on only when it is certain what
// it says. It stands before huma, which takes some bodies that strictjson.Check refuses.
func (a *api) readBody(ctx huma.Context, next func(huma.Context)) {
	if ctx.Operation().RequestBody == nil {
		next(ctx)
		return
	}
	r, w := humago.Unwrap(ctx)
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset, named := parameters["charset"]
	if err != nil || kind != "application/json" || named && !strings.EqualFold(charset, "utf-8") {
		writeProblem(w, http.StatusUnsupportedMediaType, "validation failed",
			&huma.ErrorDetail{Location: "header.Content-Type", Message: "must be application/json, in UTF-8"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.MaxBody))
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(err, &tooLarge):
		writeProblem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
	case errors.As(err, &network) && network.Timeout():
		writeProblem(w, http.StatusRequestTimeout, "the body did not arrive in time")
	case err != nil:
		writeProblem(w, http.StatusBadRequest, "the body broke off")
	case len(body) == 0:
		writeProblem(w, http.StatusBadRequest, "validation failed", &huma.ErrorDetail{Location: "body", Message: "is missing"})
	default:
		if wrong := strictjson.Check(body); wrong != nil {
			writeProblem(w, http.StatusBadRequest, "validation failed", &huma.ErrorDetail{Location: wrong.Location, Message: wrong.Message})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next(ctx)
	}
}

// watched remembers the status that went out; 0 is none.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
