package pgserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"time"
)

// TLSDSN is DSN with TLS, which the server speaks when its settings have "ssl": "on". The certificate is made for it and
// says nothing about who it is.
func (s *Server) TLSDSN(database string) string {
	return s.dsn(database, url.Values{"sslmode": {"require"}}, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
}

// SocketDSN is DSN over the Unix socket. It is "" where the path of the folder is too long for one.
func (s *Server) SocketDSN(database string) string {
	if !s.hasSocket() {
		return ""
	}
	return s.dsn(database, url.Values{"host": {s.dir}, "port": {strconv.Itoa(s.port)}}, "")
}

// hasSocket reports whether the server's folder can have a socket: sockaddr_un holds a little over 100 bytes, and a longer
// path would keep the server from starting.
func (s *Server) hasSocket() bool { return len(s.dir) <= 85 }

func (s *Server) dsn(database string, query url.Values, host string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", s.password), Host: host,
		Path: "/" + database, RawQuery: query.Encode(),
	}
	return u.String()
}

// writeCertificate makes the certificate that a server with "ssl": "on" looks for in its data.
func (s *Server) writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	for name, block := range map[string]*pem.Block{
		"server.crt": {Type: "CERTIFICATE", Bytes: certificate},
		"server.key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := s.writeFile(filepath.Join(s.data(), name), string(pem.EncodeToMemory(block))); err != nil {
			return err
		}
	}
	return nil
}
