package httpserver

import "net/http"

// Problems has mux answer with problems also where nothing is registered (404) or not for this method (405), in place of
// net/http's plain text. problem writes one.
func Problems(mux *http.ServeMux, problem func(w http.ResponseWriter, status int, detail string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		only := statusOnly{ResponseWriter: w}
		mux.ServeHTTP(&only, r)
		switch only.status {
		case http.StatusNotFound:
			w.Header().Del("Content-Type") // of the plain text
			problem(w, only.status, "there is nothing at this path: GET /openapi.json lists what there is")
		case http.StatusMethodNotAllowed:
			w.Header().Del("Content-Type")
			problem(w, only.status, "this path does not know the method: see the header Allow")
		default: // a redirect to the clean form of the path
			w.WriteHeader(only.status)
		}
	})
}

// statusOnly keeps the headers and the status of an answer and drops its text.
type statusOnly struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusOnly) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter.
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }
