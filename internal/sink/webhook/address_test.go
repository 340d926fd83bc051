package webhook_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// F-59: what a URL may name without asking anyone.
func TestAddress_isJudgedByWhereItLeads(t *testing.T) {
	const (
		public = iota
		private
		never
	)
	for host, want := range map[string]int{
		"93.184.215.14": public, "8.8.8.8": public, "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]": public, "billing.example": public,
		"172.15.255.255": public, "172.32.0.0": public, "[64:ff9b::808:808]": public, "[2002:808:808::1]": public, "[::ffff:8.8.8.8]": public,
		"127.0.0.1": private, "127.255.255.254": private, "10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private,
		"192.168.1.1": private, "100.64.0.1": private, "198.18.0.1": private, "240.0.0.1": private, "203.0.113.9": private,
		"[::1]": private, "[fd12:3456::1]": private, "[fec0::1]": private, "[::ffff:127.0.0.1]": private, "[::ffff:10.0.0.1]": private,
		"[::127.0.0.1]": private, "[64:ff9b::7f00:1]": private, "[2002:7f00:1::]": private, "[::ffff:0:a00:1]": private,
		"localhost": private, "LOCALHOST.": private, "a.localhost": private,
		"169.254.169.254": never, "169.254.0.1": never, "0.0.0.0": never, "0.1.2.3": never, "224.0.0.1": never, "255.255.255.255": never,
		"[::]": never, "[fe80::1]": never, "[fe80::1%25eth0]": never, "[ff02::1]": never, "[fd00:ec2::254]": never,
		"[::ffff:169.254.169.254]": never, "[::ffff:0.0.0.0]": never, "[64:ff9b::a9fe:a9fe]": never, "[2002:a9fe:a9fe::1]": never,
		"168.63.129.16": never, "100.100.100.200": never,
	} {
		for _, allow := range []bool{false, true} {
			o := options("http://" + host + "/")
			o.AllowPrivate = allow
			problems := o.Problems()
			switch refused := want == never || want == private && !allow; {
			case refused != (len(problems) == 1 && problems[0].Key == "url"):
				t.Errorf("%s, allow_private %v: got %v, want refused: %v", host, allow, problems, refused)
			case want == private && refused && !strings.Contains(problems[0].Err.Error(), "allow_private: true"):
				t.Errorf("%s: %v does not name the key", host, problems)
			}
		}
	}
}

// names is a resolver that answers every question with the addresses it holds now.
type names struct {
	mu    sync.Mutex
	addrs []netip.Addr // guarded by mu
}

func (n *names) become(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs = nil
	for _, addr := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(addr))
	}
}

func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go n.serve(theirs)
		return ours, nil
	}}
}

// serve answers one query over TCP's framing (RFC 1035, sections 4.1 and 4.2.2).
func (n *names) serve(conn net.Conn) {
	defer conn.Close()
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5
	wanted := binary.BigEndian.Uint16(query[end-4:])
	answer := append([]byte{}, query[:2]...)
	answer = append(answer, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	answer = append(answer, query[12:end]...)
	n.mu.Lock()
	for _, addr := range n.addrs {
		kind := uint16(28) // AAAA
		if addr.Is4() {
			kind = 1 // A
		}
		if kind != wanted {
			continue
		}
		answer[7]++
		answer = append(answer, 0xC0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(addr.BitLen()/8))
		answer = append(answer, addr.AsSlice()...)
	}
	n.mu.Unlock()
	conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
}

// F-59: a name that stands for a private address when the program starts.
func TestNew_refusesANameThatIsPrivateAlone(t *testing.T) {
	n := &names{}
	o := options("http://receiver.example./hooks")
	o.Resolver, o.AllowPrivate = n.resolver(), false
	for _, test := range []struct {
		addrs []string
		want  string // "" for taken
	}{
		{[]string{"127.0.0.1"}, "allow_private"}, {[]string{"10.1.2.3", "::1"}, "allow_private"}, {[]string{"169.254.169.254"}, "metadata"},
		{[]string{"93.184.215.14"}, ""}, {[]string{"10.1.2.3", "93.184.215.14"}, ""}, {nil, ""},
	} {
		n.become(test.addrs...)
		_, err := webhook.New(o)
		if test.want != "" {
			wantError(t, strings.Join(test.addrs, " "), err, test.want, "url", "receiver.example")
		} else if err != nil {
			t.Errorf("%v: %v", test.addrs, err)
		}
	}
}

// F-59: the name was public at the start; each connection looks again.
func TestWebhook_reachesNoPrivateAddressWhenAnAnswerChanges(t *testing.T) {
	r := newReceiver(t, nil)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(r.URL, "http://"))
	n := &names{}
	n.become("93.184.215.14")
	o := options("http://receiver.example.:" + port)
	o.Resolver, o.AllowPrivate = n.resolver(), false
	sub := open(t, o)
	for addr, want := range map[string]string{
		"127.0.0.1": "127.0.0.1 is a private address", "169.254.169.254": "169.254.169.254 is a link-local",
		"::1": "::1 is a private address", "::ffff:127.0.0.1": "127.0.0.1 is a private address", "10.0.0.1": "10.0.0.1 is a private",
	} {
		n.become(addr)
		err := sub.Handle(t.Context(), delivery(1))
		wantError(t, addr, err, want)
		if subscriber.IsPermanent(err) {
			t.Errorf("%s: %v is permanent, but a name can change back", addr, err)
		}
	}
	if got := r.got(); len(got) != 0 {
		t.Errorf("the receiver on 127.0.0.1 got %d requests", len(got))
	}
	n.become("127.0.0.1")
	o.AllowPrivate = true
	if err := open(t, o).Handle(t.Context(), delivery(1)); err != nil {
		t.Errorf("with allow_private: %v", err)
	}
}

// F-59: a receiver that sends walpost on to someone else.
func TestWebhook_followsNoRedirect(t *testing.T) {
	inner := newReceiver(t, nil)
	target, status := "", 0
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", target)
		w.WriteHeader(status)
	})
	sub := open(t, options(r.URL))
	for _, target = range []string{inner.URL, "http://169.254.169.254/latest/meta-data/", "/"} {
		for _, status = range []int{301, 302, 303, 307, 308} {
			wantError(t, target, sub.Handle(t.Context(), delivery(1)), "redirects are not followed")
		}
	}
	if got := inner.got(); len(got) != 0 {
		t.Errorf("the target of the redirect got %d requests", len(got))
	}
	if got := len(r.got()); got != 15 {
		t.Errorf("%d requests, want 15", got)
	}
}

// A proxy would connect in walpost's place, to whatever address it likes.
func TestWebhook_looksAtNoProxy(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the proxy was asked") }))
	defer proxy.Close()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	o := options("http://93.184.215.14/")
	o.AllowPrivate = false
	wantError(t, "a public address", open(t, o).Handle(ctx, delivery(1)), "enough")
	n := &names{}
	n.become("127.0.0.1")
	o.URL, o.Resolver, o.AllowPrivate = "http://receiver.example.:1/", n.resolver(), true
	wantError(t, "a closed port", open(t, o).Handle(t.Context(), delivery(1)), "refused")
}
