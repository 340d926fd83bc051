package postgres

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// connectReasons say in words what a connection failed at, and which part of the connection string decides it. The first
// whose text is in the error is taken.
var connectReasons = []struct{ text, words string }{
	{"no such host", "there is no such host: correct the host"},
	{"connection refused", "nothing listens there (connection refused): is the server running, and are host and port right?"},
	{"no such file or directory", "there is no socket of a server (no such file or directory): is the server running, and are host and port right?"},
	{"network is unreachable", "there is no way to that network (network is unreachable): correct the host"},
	{"no route to host", "there is no way to that host (no route to host): is it running, and is the host right?"},
	{"i/o timeout", "nothing answers (timeout): are host and port right, or does a firewall stand in between?"},
	{"context deadline exceeded", "nothing answers (timeout): are host and port right, or does a firewall stand in between?"},
	{"server refused TLS connection", noTLS},
	{"x509:", "the server's certificate is not trusted or not of that host: correct sslrootcert or the host, or the certificate"},
	{"tls:", "TLS fails: look at sslmode, sslrootcert, sslcert and sslkey"},
	{"ValidateConnect failed", "the server is not one that target_session_attrs asks for"},
}

const noTLS = "the server takes no TLS: turn it on there (ssl = on), or say with sslmode=disable that the network is trusted"

// place is what a driver's error begins with: where it went to, and at which step it failed.
var place = regexp.MustCompile(`^(\S+) \([^)]*\): (?:dial error: |server error: |tls error: |failed to \w+ \w+: )?`)

// connectReason says once what a connection failed at. Where there are several hosts it says it of each.
func connectReason(err error) string {
	type failure struct{ at, words string }
	var failures []failure
	for _, leaf := range leaves(err) {
		text := strings.Join(strings.Fields(leaf.Error()), " ")
		f := failure{words: text}
		if m := place.FindStringSubmatch(text); m != nil {
			f = failure{m[1], strings.TrimPrefix(text, m[0])}
		}
		for _, reason := range connectReasons {
			if strings.Contains(text, reason.text) {
				if f.words = reason.words; strings.HasPrefix(reason.text, "x509") || strings.HasPrefix(reason.text, "tls") {
					_, detail, _ := strings.Cut(text, reason.text)
					f.words += " (" + strings.TrimSpace(detail) + ")"
				}
				break
			}
		}
		if !slices.Contains(failures, f) {
			failures = append(failures, f)
		}
	}
	// By default a driver tries a server first with TLS and then without: what the second try failed at is the reason.
	all := slices.Clone(failures)
	failures = slices.DeleteFunc(failures, func(f failure) bool {
		return f.words == noTLS && slices.ContainsFunc(all, func(other failure) bool { return other.at == f.at && other.words != noTLS })
	})
	hosts := make(map[string]bool)
	for _, f := range failures {
		hosts[f.at] = true
	}
	var said []string
	for _, f := range failures {
		text := f.words
		if len(hosts) > 1 && f.at != "" {
			text = f.at + ": " + text
		}
		if !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	return strings.Join(said, "; ")
}

// leaves are the errors of the single attempts: a driver tries each address of each host, with TLS and without.
func leaves(err error) []error {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) && errors.Unwrap(connect) != nil {
		err = errors.Unwrap(connect)
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, part := range joined.Unwrap() {
		all = append(all, leaves(part)...)
	}
	return all
}
