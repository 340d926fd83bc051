package websocket

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/backendstart/walpost/internal/sink/access"
)

// certificate writes a certificate for 127.0.0.1 and its key, and returns who trusts it.
func certificate(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		text := pem.EncodeToMemory(block)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if file == cert {
			trusted.AppendCertsFromPEM(text)
		}
	}
	return trusted
}

func TestHub_servesOverTLS(t *testing.T) {
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	trusted := certificate(t, cert, key)
	r := newRig(t, func(o *Options) { o.TLS = &access.ServerTLS{Cert: cert, Key: key} })
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	defer client.CloseIdleConnections()
	conn, _, err := websocket.Dial(t.Context(), "wss://"+r.address+"/events?aggregate=game/7&last=0", &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // the library owns it
	if err != nil {
		t.Fatal(err)
	}
	f := &webSocketFollower{conn}
	defer f.cut()
	r.deliver(r.commit(eventOf("7", 1)))
	if m, err := f.next(t.Context()); err != nil || m.Revision != 1 {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := r.overWebSocket("game/7", 0); err == nil {
		t.Error("it answers without TLS")
	}
}
