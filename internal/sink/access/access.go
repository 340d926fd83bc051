// Package access holds how a broker is reached: TLS and the login, the same block of the configuration for each kind. What
// stands in files is read again for each connection, because certificates and passwords are renewed while the program runs.
package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/safefile"
)

// TLS turns encryption on, with what it needs apart from the authorities of the system.
type TLS struct {
	// CA is a file with the certificates of authorities, in the place of those of the system.
	CA string `yaml:"ca,omitempty"`
	// Cert and Key are files with a certificate of our own and its key.
	Cert string `yaml:"cert,omitempty"`
	Key  string `yaml:"key,omitempty"`
	// ServerName is the name that the server's certificate must have; "" is the one that is connected to.
	ServerName string `yaml:"server_name,omitempty"`
}

// maxPEM is how large a file of certificates may be.
const maxPEM = 1 << 20

// Check calls fail for each key that is wrong. It reads no file: they may not be there yet.
func (t *TLS) Check(fail func(key string, err error)) {
	if t == nil {
		return
	}
	for _, file := range []struct{ key, path string }{{"tls.ca", t.CA}, {"tls.cert", t.Cert}, {"tls.key", t.Key}} {
		if file.path != "" && !filepath.IsAbs(file.path) {
			fail(file.key, fmt.Errorf("%q is not absolute: it would depend on where the relay is started", file.path))
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		fail("tls.cert", errors.New("a certificate and its key are named together"))
	}
}

// Config reads the files as they are now. host is what is connected to.
func (t *TLS) Config(host string) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		text, err := safefile.Read(t.CA, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := readPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// SASL is the login.
type SASL struct {
	// Mechanism is one of Mechanisms.
	Mechanism string        `yaml:"mechanism,omitempty"`
	User      config.Secret `yaml:"user,omitempty"`
	Password  config.Secret `yaml:"password,omitempty"`
	// Token is that of oauthbearer.
	Token config.Secret `yaml:"token,omitempty"`
}

// Mechanisms of a login.
const (
	Plain       = "plain"
	Scram256    = "scram-sha-256"
	Scram512    = "scram-sha-512"
	OAuthBearer = "oauthbearer"
)

// Check calls fail for each key that is wrong. It never quotes a value but the mechanism.
func (s *SASL) Check(fail func(key string, err error)) {
	if s == nil {
		return
	}
	mechanisms := []string{Plain, Scram256, Scram512, OAuthBearer}
	switch s.Mechanism {
	case Plain, Scram256, Scram512:
		if s.User == "" || s.Password == "" {
			fail("sasl.user", fmt.Errorf("%s needs user and password", s.Mechanism))
		}
		if s.Token != "" {
			fail("sasl.token", fmt.Errorf("belongs to %s", OAuthBearer))
		}
	case OAuthBearer:
		if s.Token == "" {
			fail("sasl.token", fmt.Errorf("%s needs it", s.Mechanism))
		}
		if s.User != "" || s.Password != "" {
			fail("sasl.user", fmt.Errorf("%s has a token alone", s.Mechanism))
		}
	default:
		fail("sasl.mechanism", fmt.Errorf("%q is none of %s", s.Mechanism, strings.Join(mechanisms, ", ")))
	}
}

// SecretTexts are what must not be shown, as it is now.
func (s *SASL) SecretTexts() []string {
	if s == nil {
		return nil
	}
	return []string{s.Password.Reveal(), s.Token.Reveal()}
}

// ServerTLS is the certificate of a server of ours.
type ServerTLS struct {
	// Cert and Key are files with the certificate, the authorities between it and the root behind it, and its key.
	Cert string `yaml:"cert,omitempty"`
	Key  string `yaml:"key,omitempty"`
}

// Check calls fail for each key that is wrong. It reads no file.
func (t *ServerTLS) Check(fail func(key string, err error)) {
	if t == nil {
		return
	}
	for _, file := range []struct{ key, path string }{{"tls.cert", t.Cert}, {"tls.key", t.Key}} {
		if !filepath.IsAbs(file.path) {
			fail(file.key, fmt.Errorf("%q is no absolute path", file.path))
		}
	}
}

// certificateAge is how long a certificate is used before its files are read again.
const certificateAge = 10 * time.Second

// Config reads the files with the first connection, and again for one that comes later: certificates are renewed while the
// program runs. When that fails the last ones stay in use.
func (t *ServerTLS) Config() *tls.Config {
	var mu sync.Mutex
	var read time.Time
	var known *tls.Certificate
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if known != nil && time.Since(read) < certificateAge {
			return known, nil
		}
		pair, err := readPair(t.Cert, t.Key)
		switch {
		case err == nil:
			known, read = &pair, time.Now()
		case known == nil:
			return nil, err
		}
		return known, nil
	}}
}

// readPair reads a certificate with its key.
func readPair(cert, key string) (tls.Certificate, error) {
	certificate, err := safefile.Read(cert, maxPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.cert: %w", err)
	}
	secret, err := safefile.Read(key, maxPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.key: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, secret)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.cert: %w", err)
	}
	return pair, nil
}
