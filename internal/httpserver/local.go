package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// IsLoopback reports whether an address, host or host:port, leads to this machine. It trusts addresses and the one name that
// stands for them; other names may resolve to something else tomorrow.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// forwarding are the headers by which proxies name their client, or say that they are there (RFC 7239, RFC 9110 section
// 7.6.3, and what is common).
var forwarding = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip"}

// IsForwarded reports whether a proxy has passed the request on: then a loopback address says nothing of its sender.
func IsForwarded(header http.Header) bool {
	for name := range header {
		if slices.Contains(forwarding, name) || strings.HasPrefix(name, "X-Forwarded-") {
			return true
		}
	}
	return false
}
