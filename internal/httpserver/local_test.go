package httpserver_test

import (
	"net/http"
	"testing"

	"github.com/backendstart/walpost/internal/httpserver"
)

// S-01, S-04
func TestIsLoopback_trustsAddressesAndOneName(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8081": true, "127.0.0.1": true, "127.8.9.1:80": true, "[::1]:80": true, "[::1]": true, "::1": true, "localhost": true, "LocalHost:80": true,
		"[::ffff:127.0.0.1]:80": true,
		"":                      false, ":8081": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1": false, "localhost.evil.example": false, "127.0.0.1.evil.example:80": false,
		"evil.example": false, "127.1": false, "2130706433": false, "0x7f000001": false, "localhost.": false,
	} {
		if got := httpserver.IsLoopback(address); got != want {
			t.Errorf("%q is taken for loopback: %v", address, got)
		}
	}
}

// S-01, S-04
func TestIsForwarded_knowsTheHeadersOfProxies(t *testing.T) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-proto", "Via", "X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP"} {
		header := http.Header{}
		header.Set(name, "x")
		if !httpserver.IsForwarded(header) {
			t.Errorf("with %s a request is taken for one of this machine", name)
		}
	}
	if httpserver.IsForwarded(http.Header{"User-Agent": {"curl"}, "X-Request-Id": {"1"}, "Accept": {"*/*"}}) {
		t.Error("a plain request is taken for a forwarded one")
	}
}
