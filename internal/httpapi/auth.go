package httpapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
)

// Auth tells on whose behalf a request comes: the id of a user, always positive. Any error means that
// the caller is not known and is answered with 401; its text is logged and not shown. An Auth is safe
// for concurrent use.
type Auth func(r *http.Request) (userID int64, err error)

// NewDevAuth returns an Auth that believes the header X-User-ID. Anybody who reaches the listener can
// be anybody, so it refuses a listen address beyond loopback.
func NewDevAuth(listen string) (Auth, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("dev auth: listen address: %w", err)
	}
	// A name other than localhost may resolve to loopback here and to something else tomorrow.
	addr, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !addr.Unmap().IsLoopback()) {
		return nil, fmt.Errorf("dev auth: listen address %q is not a loopback address, and dev auth trusts every caller: "+
			"listen on 127.0.0.1, or set WALPOST_AUTH=jwt", listen)
	}
	return func(r *http.Request) (int64, error) {
		values := r.Header.Values("X-User-ID")
		if len(values) != 1 {
			return 0, errors.New("X-User-ID must be given once")
		}
		return parseUser(values[0])
	}, nil
}

// parseUser reads a positive int64 in the one way to write it, so that a user has one name only.
func parseUser(s string) (int64, error) {
	user, err := strconv.ParseInt(s, 10, 64)
	if err != nil || user <= 0 || strconv.FormatInt(user, 10) != s {
		return 0, errors.New("user id is not a positive 64-bit integer in decimal")
	}
	return user, nil
}
