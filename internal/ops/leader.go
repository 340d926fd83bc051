package ops

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/relay"
)

// sendToLeader answers a request for what the leader alone knows, if this relay stands by: with a redirect to the leader's
// ops API, or with why there is none. It reports whether it has answered. The address is what the leader has written into
// walpost.leader, where the roles of relays alone may write; a client that has a token decides itself whether to send it there.
func (s *Server) sendToLeader(w http.ResponseWriter, r *http.Request) (answered bool) {
	if s.options.Admin == nil || s.options.Relay.Progress().State != relay.Waiting {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	holder, address, err := s.options.Admin.LeaderAddress(ctx)
	switch {
	case err != nil:
		s.options.Log.Warn("request to the ops API failed", "path", r.URL.Path, "err", err)
		w.Header().Set("Retry-After", "5")
		s.problem(w, http.StatusServiceUnavailable, "this relay stands by, and cannot ask who leads: "+err.Error())
	case holder == "":
		w.Header().Set("Retry-After", "1")
		s.problem(w, http.StatusServiceUnavailable, "this relay stands by, and no relay leads at this moment")
	case address == "":
		w.Header().Set("Retry-After", "5")
		s.problem(w, http.StatusServiceUnavailable, fmt.Sprintf("this relay stands by; %s leads, and where it answers is not known: it listens on a socket", holder))
	case httpserver.IsLoopback(address) && !isHere(holder):
		w.Header().Set("Retry-After", "5")
		s.problem(w, http.StatusServiceUnavailable, fmt.Sprintf("this relay stands by; %s leads, and listens on loopback of its own machine: "+
			"give it an address that others reach, with WALPOST_OPS_LISTEN or WALPOST_OPS_ADDRESS", holder))
	default:
		leader := url.URL{Scheme: "http", Host: address, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", leader.String())
		s.problem(w, http.StatusTemporaryRedirect, fmt.Sprintf("this relay stands by; the leader answers at http://%s", address))
	}
	return true
}

// isHere reports whether a holder, which begins with the name of its machine, cut to 20 bytes, runs on this one.
func isHere(holder string) bool {
	name, err := os.Hostname()
	host, _, _ := strings.Cut(holder, "/")
	return err == nil && host == fmt.Sprintf("%.20s", name)
}

// leaderProgress answers with what the leader has in memory.
func (s *Server) leaderProgress(w http.ResponseWriter, r *http.Request) {
	if refused := s.refuseRead(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	if !s.sendToLeader(w, r) {
		s.progress(w, r)
	}
}
