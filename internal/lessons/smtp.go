package lessons

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/subscriber"
)

// mailTimeout is the longest that one mail may take, from dialling to the server's word that it has it.
const mailTimeout = 10 * time.Second

// SMTPNotifier sends mails through an SMTP server, with a connection for each. It prints without its
// password in every format, and no error of it contains the password. It is safe for concurrent use.
type SMTPNotifier struct {
	host     string
	port     int
	implicit bool // TLS from the first byte (smtps), RFC 8314
	starttls mail.TLSPolicy
	user     string
	password func() string // a func prints as an address, however the struct is printed
	from     *netmail.Address
	domain   string
	roots    *tls.Config // nil: the system's certificates
}

// NewSMTPNotifier reads a URL such as
//
//	smtp://user:password@mail.example.com:587?from=school@example.com&domain=learners.example.com
//
// smtps:// is TLS from the first byte (port 465). With smtp:// the parameter tls says what is done about
// STARTTLS: required (the default when there is a user; port 587), opportunistic (the default without;
// port 25), or none. A password is only ever sent in the clear to localhost. from defaults to
// walpost@<domain>, domain to learners.invalid. Nothing is dialled before the first Notify.
func NewSMTPNotifier(rawURL string) (*SMTPNotifier, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The cause is kept back on purpose: it quotes the URL, or the piece of the password it fell over.
		return nil, errors.New("SMTP URL: not a URL; write it as smtp://user:password@host:port, " +
			"with special characters in user and password percent-encoded")
	}
	password, _ := u.User.Password()
	n := &SMTPNotifier{
		host: u.Hostname(), implicit: u.Scheme == "smtps",
		user: u.User.Username(), password: func() string { return password },
	}
	switch {
	case u.Scheme != "smtp" && u.Scheme != "smtps":
		return nil, errors.New("SMTP URL: begins with neither smtp:// nor smtps://")
	case n.host == "":
		return nil, errors.New("SMTP URL: no host")
	case u.Path != "" && u.Path != "/" || u.Fragment != "":
		return nil, errors.New("SMTP URL: something stands between the port and the parameters; " +
			"percent-encode / and # in the password")
	}
	if err := n.readOptions(u); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *SMTPNotifier) readOptions(u *url.URL) error {
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errors.New("SMTP URL: parameters cannot be read; percent-encode special characters")
	}
	from, policy := "", ""
	n.domain = "learners.invalid"
	for name, values := range options {
		switch name {
		case "from":
			from = values[0]
		case "domain":
			n.domain = values[0]
		case "tls":
			policy = values[0]
		default:
			// A ? in a password ends up here, so the name is not repeated.
			return errors.New("SMTP URL: unknown parameter; there are from, domain and tls")
		}
	}
	if from == "" {
		from = "walpost@" + n.domain
	}
	if n.from, err = netmail.ParseAddress(from); err != nil {
		return errors.New("SMTP URL: from is no mail address")
	}
	if _, err = netmail.ParseAddress("user-1@" + n.domain); err != nil {
		return errors.New("SMTP URL: domain is no domain of a mail address")
	}
	n.port = 25
	if n.user != "" {
		n.port = 587
	}
	if n.implicit {
		n.port = 465
	}
	if text := u.Port(); text != "" {
		if n.port, err = strconv.Atoi(text); err != nil || n.port < 1 || n.port > 65535 {
			return errors.New("SMTP URL: port is not between 1 and 65535")
		}
	}
	switch {
	case n.implicit && policy != "":
		return errors.New("SMTP URL: tls is for smtp://; smtps:// always is TLS")
	case policy == "required", policy == "" && n.user != "":
		n.starttls = mail.TLSMandatory
	case policy == "opportunistic", policy == "":
		n.starttls = mail.TLSOpportunistic
	case policy == "none":
		n.starttls = mail.NoTLS
	default:
		return errors.New("SMTP URL: tls is none of required, opportunistic, none")
	}
	return nil
}

// String names the server, without user and password.
func (n *SMTPNotifier) String() string { return net.JoinHostPort(n.host, strconv.Itoa(n.port)) }

// Notify sends a mail whose Message-ID is made from the event id. It is Permanent when the server
// refuses the recipient for good (5xx to RCPT TO); a refusal that is about us, such as a missing login or
// a relay that is closed to us, is not, since it is fixed in the configuration.
func (n *SMTPNotifier) Notify(ctx context.Context, message Message) error {
	ctx, cancel := context.WithTimeout(ctx, mailTimeout)
	defer cancel()
	msg, err := n.compose(message)
	if err != nil {
		return subscriber.Permanent(fmt.Errorf("compose mail to user %d: %w", message.UserID, err))
	}
	err = n.send(ctx, msg)
	if err == nil || msg.IsDelivered() {
		return nil // the server has it; a farewell that went wrong is no reason to send it twice
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send mail through %s: %w", n, context.Cause(ctx))
	}
	// The cause goes on as a text: servers are known to repeat what they did not like to hear.
	failure := fmt.Errorf("send mail through %s: %s", n, shortened(mask.New(n.password()).Text(err.Error())))
	if refusesRecipient(err) {
		return subscriber.Permanent(failure)
	}
	return failure
}

// recipient is where a directory of the learners' addresses would be asked: the lesson platform's tables
// have none.
func (n *SMTPNotifier) recipient(userID int64) string {
	return fmt.Sprintf("user-%d@%s", userID, n.domain)
}

func (n *SMTPNotifier) compose(message Message) (*mail.Msg, error) {
	msg := mail.NewMsg()
	msg.FromMailAddress(n.from)
	if err := msg.To(n.recipient(message.UserID)); err != nil {
		return nil, err
	}
	msg.SetMessageIDWithValue(messageID(message.EventID))
	msg.Subject(oneLine(message.Subject))
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no out-of-office replies
	msg.SetBodyString(mail.TypeTextPlain, message.Text)
	return msg, nil
}

// send is one connection, one mail. go-mail heeds the context only while it dials, and leaves the
// connection open when the greeting goes wrong, so the connection is closed here, with ctx.
func (n *SMTPNotifier) send(ctx context.Context, msg *mail.Msg) error {
	var conn net.Conn
	// dialling ends with the dialling, and must not take the connection along.
	dial := func(dialling context.Context, network, address string) (net.Conn, error) {
		plain, err := new(net.Dialer).DialContext(dialling, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = plain.Close() })
		limited := &limitedConn{Conn: plain, left: maxConversation}
		conn = limited
		if n.implicit {
			conn = tls.Client(limited, n.tlsConfig())
		}
		return conn, nil
	}
	client, err := mail.NewClient(n.host, n.options(dial)...)
	if err != nil {
		return err
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return err
	}
	if err := client.SendWithSMTPClient(session, msg); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // QUIT is a courtesy
	return session.Quit()
}

// maxConversation is how much a server may say while one mail is sent: go-mail reads a line to its end, however long.
// Certificates are the largest part of an honest conversation.
const maxConversation = 128 << 10

// limitedConn is a connection that reads no more than left bytes. One goroutine reads from it.
type limitedConn struct {
	net.Conn
	left int
}

func (c *limitedConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, fmt.Errorf("the server says more than %d bytes", maxConversation)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (n *SMTPNotifier) options(dial mail.DialContextFunc) []mail.Option {
	options := []mail.Option{
		mail.WithPort(n.port),
		mail.WithTimeout(mailTimeout),
		mail.WithTLSConfig(n.tlsConfig()),
		mail.WithTLSPolicy(n.starttls),
		mail.WithDialContextFunc(dial),
		mail.WithoutNoop(), // one mail per connection: nothing to keep alive or to reset
		mail.WithoutRset(),
	}
	if n.implicit {
		options = append(options, mail.WithSSL())
	}
	if n.user != "" {
		options = append(options, mail.WithUsername(n.user), mail.WithPassword(n.password()),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1,
				mail.SMTPAuthPlain, mail.SMTPAuthLogin))
	}
	return options
}

func (n *SMTPNotifier) tlsConfig() *tls.Config {
	config := &tls.Config{}
	if n.roots != nil {
		config = n.roots.Clone()
	}
	config.ServerName, config.MinVersion = n.host, tls.VersionTLS12
	return config
}

// shortened keeps of a server's words what a person reads.
func shortened(text string) string {
	const most = 1000
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// refusesRecipient tells a mailbox that does not exist from a server that does not want us: 500 to 504
// are about the command, 530 and 5.7.x about who we are and what we may. (RFC 5321 §4.2, RFC 3463 §3.8)
func refusesRecipient(err error) bool {
	var refused *mail.SendError
	return errors.As(err, &refused) && refused.Reason == mail.ErrSMTPRcptTo &&
		refused.ErrorCode() > 504 && refused.ErrorCode() != 530 &&
		!strings.HasPrefix(refused.EnhancedStatusCode(), "5.7.")
}

// messageID is <event-id@walpost> without the brackets. An event id that is not made of the characters
// that RFC 5322 allows there, or too long for a line, is replaced by its SHA-256: as stable, and harmless.
func messageID(eventID string) string {
	legal := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_+=", r))
	}
	if eventID == "" || len(eventID) > 64 || strings.ContainsFunc(eventID, func(r rune) bool { return !legal(r) }) {
		sum := sha256.Sum256([]byte(eventID))
		eventID = hex.EncodeToString(sum[:])
	}
	return eventID + "@walpost"
}

// oneLine keeps a value from ending its header and beginning another.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
