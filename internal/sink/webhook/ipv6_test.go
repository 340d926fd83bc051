package webhook_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// listenOn is newReceiver at an address of one's own. It tells by which name it was asked for.
func listenOn(t *testing.T, address string) (port string, hosts chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	hosts = make(chan string, 8)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hosts <- r.Host
	})}}
	server.Start()
	t.Cleanup(server.Close)
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, hosts
}

// F-68: an address of IPv6 in the URL keeps its brackets, where it is connected to and in the Host header.
func TestWebhook_reachesAnAddressOfIPv6(t *testing.T) {
	port, hosts := listenOn(t, "[::1]:0")
	for _, host := range []string{"[::1]:" + port, "[0:0:0:0:0:0:0:1]:" + port} {
		if err := open(t, options("http://"+host+"/hooks")).Handle(t.Context(), delivery(1)); err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		if got := <-hosts; got != host {
			t.Errorf("the receiver is asked for %q, want %q", got, host)
		}
	}
}

// F-68: a name has an address of IPv6 and one of IPv4, of which one is dead or missing.
func TestWebhook_reachesTheAddressThatLives(t *testing.T) {
	four, askedFour := listenOn(t, "127.0.0.1:0")
	six, askedSix := listenOn(t, "[::1]:0")
	for _, test := range []struct {
		addrs []string
		port  string
		asked chan string
	}{
		{[]string{"::1", "127.0.0.1"}, four, askedFour},    // no one listens there
		{[]string{"100::1", "127.0.0.1"}, four, askedFour}, // nowhere: what is sent there is thrown away (RFC 6666)
		{[]string{"127.0.0.1", "::1"}, six, askedSix},
		{[]string{"127.0.0.1"}, four, askedFour},
		{[]string{"::1"}, six, askedSix},
	} {
		n := &names{}
		n.become(test.addrs...)
		o := options("http://receiver.example.:" + test.port)
		o.Resolver = n.resolver()
		if err := open(t, o).Handle(t.Context(), delivery(1)); err != nil {
			t.Errorf("%v: %v", test.addrs, err)
			continue
		}
		if got, want := <-test.asked, fmt.Sprintf("receiver.example.:%s", test.port); got != want {
			t.Errorf("%v: the receiver is asked for %q, want %q", test.addrs, got, want)
		}
	}
}
