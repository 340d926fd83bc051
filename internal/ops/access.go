package ops

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/safefile"
)

// refusal says why a request is not answered; nil lets it in.
type refusal struct {
	status int
	detail string
}

// tokenWay and socketWay are the two ways to change something over HTTP.
const (
	tokenWay  = "start the relay with WALPOST_OPS_TOKEN and send that token as \"Authorization: Bearer …\""
	socketWay = "let it listen on a socket of its user, WALPOST_OPS_LISTEN=unix:/path/to/ops.sock"
)

// refuseRead decides who sees names, ids, errors and payloads. A token that is set is asked for everywhere, because
// loopback tells nothing about the user at the other end. Without a token the listener decides: the file mode of a
// socket lets in its owner alone; TCP is open to loopback alone. A page of another site can make its own name lead to
// 127.0.0.1, so the name in the URL counts, and a proxy on this machine forwards requests of other machines.
func (s *Server) refuseRead(r *http.Request) *refusal {
	switch {
	case s.options.Token != "":
		if s.showsToken(r) {
			return nil
		}
		return &refusal{http.StatusUnauthorized, "send the ops token as \"Authorization: Bearer …\""}
	case s.listens == onSocket:
		return nil
	case s.listens == onNetwork:
		return &refusal{http.StatusForbidden, "beyond loopback this needs a token, and none is set: " + tokenWay}
	case !httpserver.IsLoopback(r.Host):
		return &refusal{http.StatusForbidden, "use the name localhost or a loopback address in the URL, or " + tokenWay}
	case httpserver.IsForwarded(r.Header):
		return &refusal{http.StatusForbidden, "a proxy has forwarded this request, so its sender is unknown: " + tokenWay}
	}
	return nil
}

// refuseChange decides who changes something: TCP without a token is closed, because it cannot know the user of the
// process at the other end.
func (s *Server) refuseChange(r *http.Request) *refusal {
	if s.options.Token == "" && s.listens != onSocket {
		return &refusal{http.StatusForbidden, "over TCP, and without a token, nothing can be changed: " + tokenWay + ", or " + socketWay +
			"; the commands of walpost work on the database and need neither"}
	}
	return s.refuseRead(r)
}

// showsToken compares hashes, so that neither the content nor the length of the token can be found out by timing.
func (s *Server) showsToken(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	now := safefile.Latest(s.options.Token)
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(now))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer") && now != "" // a file that is empty lets no one in
}

func (s *Server) refuse(w http.ResponseWriter, r *refusal) {
	if r.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	s.problem(w, r.status, r.detail)
}
