package nats

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// dialFor is how long a connection may take, and a write to one.
	dialFor = 3 * time.Second
	// pingEvery and two of its answers missing tell that a server hangs.
	pingEvery = 5 * time.Second
	// longestPause is how long the client rests between two tries of all servers.
	longestPause = 5 * time.Second
	// deniedFor is how long a subject without rights is not tried again.
	deniedFor = 5 * time.Second
	// pending is above every in_flight, which is what bounds a client.
	pending = 1 << 24
	// maxSeed is how large the file of a seed may be.
	maxSeed = 64 << 10
)

// session is a connection, which the client makes again whenever it is cut, with what is on its way. It sends nothing
// after stop.
type session struct {
	nats    *NATS
	streams *streams

	life context.Context // until stop
	stop context.CancelFunc
	gone chan struct{} // closed by close
	end  sync.Once
	work sync.WaitGroup // everything that waits for the server

	begin sync.Once
	ready chan struct{} // closed when the first try is over; conn, js and err are set before
	conn  *client.Conn
	js    jetstream.JetStream
	nkey  string // the public key of the login
	err   error  // of the configuration, or of a file that it names

	mu       sync.Mutex
	sockets  map[net.Conn]struct{} // guarded by mu
	words    error                 // why there is no connection, in the server's words; guarded by mu
	inbox    error                 // why no acknowledgement can come; guarded by mu
	cut      chan struct{}         // closed when the connection is cut, and then made again; guarded by mu
	doubtful bool                  // something that was sent was given up without an answer; guarded by mu
	denials  map[string]*denial    // by subject; guarded by mu
}

// denial is a subject that the server has refused for want of rights, or one that is waited for.
type denial struct {
	waiting int
	refused chan struct{}
	err     error
	at      time.Time
}

func newSession(n *NATS) *session {
	s := &session{
		nats: n, streams: newStreams(), gone: make(chan struct{}), ready: make(chan struct{}), cut: make(chan struct{}),
		sockets: map[net.Conn]struct{}{}, denials: map[string]*denial{},
	}
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// connect begins to connect and waits for the end of the first try. The error says why nothing can be sent now.
func (s *session) connect(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.begin.Do(func() {
		s.work.Go(func() {
			defer close(s.ready)
			s.dialServers()
		})
	})
	select {
	case <-s.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case s.err != nil:
		return subscriber.Away(s.nats.masked(s.err))
	case !s.conn.IsConnected():
		return s.notConnected()
	}
	return nil
}

// isUseless tells of a session that will never send: a file could not be read, or the key of its login is another by now.
func (s *session) isUseless() bool {
	select {
	case <-s.ready:
	default:
		return false
	}
	if s.err != nil {
		return true
	}
	if s.nkey == "" || s.conn.IsConnected() {
		return false
	}
	public, err := publicKey(s.nats.Auth.NKey)
	return err == nil && public != s.nkey
}

func (s *session) dialServers() {
	options, err := s.options()
	if err != nil {
		s.err = err
		return
	}
	urls := make([]string, 0, len(s.nats.Servers))
	for _, server := range s.nats.Servers {
		url, _ := serverURL(server) // Check has looked at it
		urls = append(urls, url)
	}
	s.conn, s.err = client.Connect(strings.Join(urls, ","), options...)
	if s.err == nil {
		s.js, s.err = jetstream.New(s.conn, jetstream.WithPublishAsyncMaxPending(pending), jetstream.WithPublishAsyncTimeout(s.nats.Timeout+lateFor))
	}
}

// options of the client. It tries for ever. It keeps nothing while it is cut: what it sent after a reconnect could be of a
// leadership that is over.
func (s *session) options() ([]client.Option, error) {
	options := append(s.nats.common(),
		client.MaxReconnects(-1), client.RetryOnFailedConnect(true), client.IgnoreAuthErrorAbort(),
		client.ReconnectBufSize(-1),
		client.CustomReconnectDelay(pause),
		client.SetCustomDialer(s),
		client.DisconnectErrHandler(func(_ *client.Conn, err error) { s.disconnected(err) }),
		client.ReconnectErrHandler(func(_ *client.Conn, err error) { s.say(err) }),
		client.ErrorHandler(func(_ *client.Conn, _ *client.Subscription, err error) { s.refused(err) }),
	)
	login, nkey, err := s.nats.login()
	s.nkey = nkey
	return append(options, login...), err
}

// pause is how long the client rests after it has tried all servers so often.
func pause(attempts int) time.Duration {
	longest := min(longestPause, 100*time.Millisecond<<min(attempts, 10))
	return longest/2 + rand.N(longest/2) //nolint:gosec // so that relays do not come at once
}

// common are the options of every connection.
func (n *NATS) common() []client.Option {
	options := []client.Option{
		client.Name("walpost"), client.Timeout(dialFor), client.FlusherTimeout(dialFor), client.PingInterval(pingEvery),
	}
	if n.InboxPrefix != "" {
		options = append(options, client.CustomInboxPrefix(n.InboxPrefix))
	}
	if n.TLS == nil {
		return options
	}
	options = append(options, client.Secure(&tls.Config{ServerName: n.TLS.ServerName, MinVersion: tls.VersionTLS12}))
	read := func() (*tls.Config, error) { return n.TLS.Config("") } // again for each connection
	var certificate client.TLSCertHandler
	var authorities client.RootCAsHandler
	if n.TLS.Cert != "" {
		certificate = func() (tls.Certificate, error) {
			c, err := read()
			if err != nil {
				return tls.Certificate{}, err
			}
			return c.Certificates[0], nil
		}
	}
	if n.TLS.CA != "" {
		authorities = func() (*x509.CertPool, error) {
			c, err := read()
			if err != nil {
				return nil, err
			}
			return c.RootCAs, nil
		}
	}
	return append(options, func(o *client.Options) error {
		o.TLSCertCB, o.RootCAsCB = certificate, authorities
		return nil
	})
}

// login is how the client says who it is. What it says is read again for each connection, but for the public part of an
// NKey, which is returned.
func (n *NATS) login() (options []client.Option, nkey string, err error) {
	a := n.Auth
	switch {
	case a == nil:
		return nil, "", nil
	case a.Token != "":
		return []client.Option{client.TokenHandler(a.Token.Reveal)}, "", nil
	case a.Credentials != "":
		if _, err := safefile.Read(a.Credentials, maxSeed); err != nil {
			return nil, "", fmt.Errorf("auth.credentials: %w", err)
		}
		return []client.Option{client.UserCredentials(a.Credentials)}, "", nil
	case a.NKey != "":
		public, err := publicKey(a.NKey)
		sign := func(nonce []byte) ([]byte, error) {
			pair, err := keyPair(a.NKey)
			if err != nil {
				return nil, err
			}
			defer pair.Wipe()
			return pair.Sign(nonce)
		}
		return []client.Option{client.Nkey(public, sign)}, public, err
	}
	return []client.Option{client.UserInfoHandler(func() (string, string) { return a.User.Reveal(), a.Password.Reveal() })}, "", nil
}

// keyPair reads the seed of an NKey. The error repeats nothing of the file.
func keyPair(path string) (nkeys.KeyPair, error) {
	text, err := safefile.Read(path, maxSeed)
	if err != nil {
		return nil, fmt.Errorf("auth.nkey: %w", err)
	}
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return nil, fmt.Errorf("auth.nkey: %s holds no seed", path)
	}
	return pair, nil
}

func publicKey(path string) (string, error) {
	pair, err := keyPair(path)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// Dial implements client.CustomDialer: the session knows its sockets, so that it can end them without a last flush.
func (s *session) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.life, dialFor)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.life.Err(); err != nil { // it has ended meanwhile, and close has looked already
		_ = conn.Close()
		return nil, err
	}
	kept := &socket{Conn: conn, session: s}
	s.sockets[kept] = struct{}{}
	return kept, nil
}

// socket is one that its session forgets when it is closed.
type socket struct {
	net.Conn
	session *session
}

func (k *socket) Close() error {
	k.session.mu.Lock()
	delete(k.session.sockets, k)
	k.session.mu.Unlock()
	return k.Conn.Close()
}

// say keeps why there is no connection.
func (s *session) say(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.words = err
	}
}

// disconnected ends the wait for what was on its way.
func (s *session) disconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.words = err
	}
	s.doubtful = false // what the connection still had is beyond asking
	s.inbox = nil
	close(s.cut)
	s.cut = make(chan struct{})
}

func (s *session) whenCut() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

func (s *session) notConnected() error {
	s.mu.Lock()
	words := s.words
	s.mu.Unlock()
	if words == nil {
		words = errors.New("no server has answered yet")
	}
	return subscriber.Away(s.nats.masked(fmt.Errorf("not connected to %s: %w", strings.Join(s.nats.Servers, ", "), words)))
}

var publishTo = regexp.MustCompile(`(?i)publish to "(\S+)"`)

// refused takes what the server says outside of its answers: that a right is missing.
func (s *session) refused(err error) {
	if !errors.Is(err, client.ErrPermissionViolation) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	subject := publishTo.FindStringSubmatch(err.Error())
	if subject == nil {
		s.inbox = err // no right to subscribe: no acknowledgement can come
		return
	}
	if d := s.denials[subject[1]]; d != nil && d.err == nil {
		d.err, d.at = err, time.Now()
		close(d.refused)
	}
}

// denied tells that the server has refused the subject a moment ago.
func (s *session) denied(subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.denials[subject]
	if d == nil || d.err == nil || time.Since(d.at) > deniedFor {
		return nil
	}
	return s.denialError(subject, d)
}

func (s *session) denialError(subject string, d *denial) error {
	return subscriber.Away(s.nats.masked(fmt.Errorf("subject %s: %w", subject, d.err)))
}

// watch is told when the server refuses the subject. The watch ends with unwatch.
func (s *session) watch(subject string) *denial {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.denials[subject]
	if d == nil || d.err != nil { // what was refused before says nothing of what is sent now
		d = &denial{refused: make(chan struct{})}
		s.denials[subject] = d
	}
	d.waiting++
	return d
}

func (s *session) unwatch(subject string, d *denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.waiting--; d.waiting == 0 && d.err == nil && s.denials[subject] == d {
		delete(s.denials, subject)
	}
	const most = 1000 // refused ones; data makes subjects
	for old, known := range s.denials {
		if len(s.denials) <= most {
			break
		}
		if known.waiting == 0 {
			delete(s.denials, old)
		}
	}
}

// doubt notes that something was sent of which no answer has come, however late.
func (s *session) doubt(err error) {
	if !errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtful = true
}

// awaitAnswers waits until nothing that was sent can reach a stream any more, or ctx ends.
func (s *session) awaitAnswers(ctx context.Context) error {
	s.stop()
	settled := make(chan struct{})
	go func() { s.work.Wait(); close(settled) }()
	select {
	case <-settled:
	case <-ctx.Done():
		s.close() // now all that waits ends
		<-settled
		return fmt.Errorf("what is on its way is not acknowledged: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubtful {
		return errors.New("the server has not acknowledged all that it was sent, and may still store it")
	}
	return nil
}

// close ends the connection without a last flush.
func (s *session) close() {
	s.stop()
	s.end.Do(func() {
		close(s.gone)
		s.closeSockets()
		s.begin.Do(func() { close(s.ready) }) // it was never used
		<-s.ready                             // the end of life, and of its sockets, ends a try
		if s.conn != nil {
			s.conn.Close()
		}
		s.closeSockets()
	})
}

func (s *session) closeSockets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.sockets {
		_ = conn.(*socket).Conn.Close()
	}
}
