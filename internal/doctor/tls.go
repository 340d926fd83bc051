package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/backendstart/walpost/internal/postgres"
)

// checkTLS finds connections that can be read or answered by a machine in between: without sslmode a client tries
// encryption, verifies no certificate, and goes on in plain text where the server refuses.
// (PostgreSQL manual, "SSL Mode Descriptions")
func checkTLS(_ context.Context, c *checker) ([]Finding, error) {
	found, err := judgeTLS("database_url", c.DatabaseURL)
	if err != nil || c.ReplicationURL == c.DatabaseURL {
		return found, err
	}
	more, err := judgeTLS("replication_url", c.ReplicationURL)
	return append(found, more...), err
}

func judgeTLS(option, dsn string) ([]Finding, error) {
	config, err := postgres.ConnConfig(dsn)
	if err != nil {
		return nil, err
	}
	plain, encrypted := map[string]bool{}, map[string]bool{}
	noteHost := func(host string, tls *tls.Config) {
		if tls == nil {
			plain[host] = true
		} else {
			encrypted[host] = true
		}
	}
	noteHost(config.Host, config.TLSConfig)
	for _, f := range config.Fallbacks {
		noteHost(f.Host, f.TLSConfig)
	}
	for host := range plain {
		if encrypted[host] && !local(host) { // prefer or allow: either will do
			return []Finding{warning(fmt.Sprintf("%s has no sslmode, or prefer or allow, and leads to host %q", option, host),
				"the password and every event can be read on the way, and any machine can answer for the server: it goes on without encryption where there is none, and verifies no certificate",
				&Fix{Do: "add sslmode=verify-full, and sslrootcert with the authority of the server's certificate; sslmode=disable where the network is trusted"}).about(option)}, nil
		}
	}
	return nil, nil
}

// local reports whether a connection to a host stays on the machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" || ip != nil && ip.IsLoopback()
}
