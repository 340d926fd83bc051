package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Pair is an authority with the certificates of a server and of a client.
type Pair struct{ files map[string][]byte }

// NewPair makes them for 127.0.0.1.
func NewPair(t T) *Pair {
	t.Helper()
	p := &Pair{files: map[string][]byte{}}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "walpost tests"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
	}
	signer := newKey(t)
	p.files["ca.pem"] = p.certificate(t, authority, authority, signer, signer)
	for i, name := range []string{"server", "client"} {
		key := newKey(t)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)), Subject: pkix.Name{CommonName: name}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		certificate := p.certificate(t, template, authority, key, signer)
		p.files[name+"-key.pem"] = private
		p.files[name+".pem"] = certificate
		if name == "server" { // Kafka wants key and certificate in one file
			p.files["server.pem"] = append(private, certificate...)
		}
	}
	return p
}

func newKey(t T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (p *Pair) certificate(t T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Write puts the files into a folder: ca.pem, and for server and client a certificate and its key.
func (p *Pair) Write(t T, folder string) {
	t.Helper()
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
