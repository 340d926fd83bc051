package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// nameTimeout bounds the look at a name when the program starts. A name that takes longer is judged by
// each connection anyway.
const nameTimeout = time.Second

// refused are addresses that no webhook has business with, whatever the configuration says: this host's
// "any", link-local, multicast, and where clouds keep their metadata.
var refused = prefixes(
	"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32",
	"::/128", "fe80::/10", "ff00::/8",
	"168.63.129.16/32",   // Azure
	"100.100.100.200/32", // Alibaba Cloud
	"192.0.0.192/32",     // Oracle Cloud
	"fd00:ec2::/32",      // AWS
	"fd20:ce::254/128",   // Google Cloud
)

// private is what is not reached over the public internet (IANA special-purpose address registries).
var private = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10",
	"192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"::1/128", "fc00::/7", "fec0::/10", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
)

// embeds are IPv6 addresses that lead to an IPv4 address, which begins at the byte.
var embeds = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64, RFC 6052
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // translated, RFC 7915
	{netip.MustParsePrefix("::/96"), 12},           // compatible, RFC 4291
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4, RFC 3056
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// checkAddress tells why an address must not be connected to.
func checkAddress(addr netip.Addr, allowPrivate bool) error {
	addr = addr.Unmap().WithZone("")
	if within(addr, refused) {
		return fmt.Errorf("%s is a link-local, multicast, unspecified or cloud metadata address: walpost never posts there", addr)
	}
	if within(addr, private) {
		if allowPrivate {
			return nil
		}
		return fmt.Errorf("%s is a private address: set allow_private: true if this receiver belongs to you", addr)
	}
	for _, embed := range embeds {
		if embed.prefix.Contains(addr) {
			bytes := addr.As16()
			inner, _ := netip.AddrFromSlice(bytes[embed.at : embed.at+4])
			return checkAddress(inner, allowPrivate)
		}
	}
	return nil
}

func within(addr netip.Addr, list []netip.Prefix) bool {
	for _, prefix := range list {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// guard looks at the address that is really connected to, after the name was resolved and for each
// connection again: whatever a name stood for before does not matter.
func guard(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		addr, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("address %q: %w", address, err)
		}
		return checkAddress(addr.Addr(), allowPrivate)
	}
}

// checkHost looks at a host as it is written, without asking anyone: an address, or a name that always
// means this machine.
func checkHost(host string, allowPrivate bool) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return checkAddress(addr, allowPrivate)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if !allowPrivate && (name == "localhost" || strings.HasSuffix(name, ".localhost")) {
		return fmt.Errorf("%s is this machine, a private address: set allow_private: true if this receiver belongs to you", host)
	}
	return nil
}

// checkName resolves a name once, at the start, and refuses one of whose addresses none may be connected
// to. An error of the lookup is no answer.
func (o Options) checkName(host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return nil // checkHost has looked at it
	}
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	resolver := o.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	var errs []error
	for _, addr := range addrs {
		err := checkAddress(addr, o.AllowPrivate)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", host, err))
	}
	return errors.Join(errs...)
}
