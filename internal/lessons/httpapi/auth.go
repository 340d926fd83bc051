package httpapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/backendstart/walpost/internal/httpserver"
)

// Auth tells on whose behalf a request comes: the id of a user, always positive. A Forbidden is answered with 403 and
// shown. Any other error means that the caller is not known and is answered with 401; its text is logged and not shown. An Auth is safe
// for concurrent use.
type Auth func(r *http.Request) (userID int64, err error)

// Forbidden is an error of a request that must not be answered, whatever user it names.
type Forbidden string

func (f Forbidden) Error() string { return string(f) }

// NewDevAuth returns an Auth that believes the header X-User-ID. Anyone who reaches the listener can
// be anyone, so it refuses a listen address beyond loopback. A page of another site that a browser on
// this machine shows reaches loopback too, also under a name of its own that leads there: a request
// with another Host, with the Origin of another site or through a proxy is Forbidden.
func NewDevAuth(listen string) (Auth, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("dev auth: listen address: %w", err)
	}
	if !httpserver.IsLoopback(host) {
		return nil, fmt.Errorf("dev auth: listen address %q is not a loopback address, and dev auth trusts every caller: "+
			"listen on 127.0.0.1, or set WALPOST_AUTH=jwt", listen)
	}
	return func(r *http.Request) (int64, error) {
		if err := checkLocal(r); err != nil {
			return 0, err
		}
		values := r.Header.Values("X-User-ID")
		if len(values) != 1 {
			return 0, errors.New("X-User-ID must be given once")
		}
		return parseUser(values[0])
	}, nil
}

// checkLocal returns a Forbidden for a request that another machine or another site may have caused.
func checkLocal(r *http.Request) error {
	origin, isPage := r.Header["Origin"]
	site := r.Header.Get("Sec-Fetch-Site") // which page asks, by a browser; none is the person at the browser
	switch {
	case !httpserver.IsLoopback(r.Host):
		return Forbidden("dev auth answers under localhost and loopback addresses only")
	case site != "" && site != "same-origin" && site != "none", isPage && (len(origin) != 1 || origin[0] != "http://"+r.Host):
		return Forbidden("dev auth does not answer to pages of other sites")
	}
	if httpserver.IsForwarded(r.Header) {
		return Forbidden("dev auth does not answer to what a proxy forwards")
	}
	return nil
}

// parseUser reads a positive int64 in the one way to write it, so that a user has one name only.
func parseUser(s string) (int64, error) {
	user, err := strconv.ParseInt(s, 10, 64)
	if err != nil || user <= 0 || strconv.FormatInt(user, 10) != s {
		return 0, errors.New("user id is not a positive 64-bit integer in decimal")
	}
	return user, nil
}
