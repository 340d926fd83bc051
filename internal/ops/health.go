package ops

import (
	"net/http"

	"github.com/backendstart/walpost/internal/httpserver"
)

func (s *Server) live(w http.ResponseWriter, _ *http.Request) {
	httpserver.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	health := s.options.Relay.Health()
	if s.refuseRead(r) != nil {
		health.Problems = nil // they name events, hosts and errors
	}
	status := http.StatusOK
	if !health.Ready {
		status = http.StatusServiceUnavailable
	}
	httpserver.WriteJSON(w, status, health)
}

// leader is for load balancers that send clients to the one relay that leads; /ready is 200 on a standby, too.
func (s *Server) leader(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusOK
	if !s.options.Relay.Leads() {
		status = http.StatusServiceUnavailable
	}
	httpserver.WriteJSON(w, status, map[string]bool{"leader": status == http.StatusOK})
}

func (s *Server) progress(w http.ResponseWriter, r *http.Request) {
	if refused := s.refuseRead(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	httpserver.WriteJSON(w, http.StatusOK, s.options.Relay.Progress())
}
