package lessons

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// smtpServer speaks enough SMTP to take a mail, and answers or hangs as replies says.
type smtpServer struct {
	listener net.Listener
	tls      *tls.Config // nil: plain
	// replies are answers that differ from what a willing server says, by command ("" is the greeting,
	// "." the end of the mail); hang is never to answer.
	replies map[string]string

	mu       sync.Mutex
	mails    []string // guarded by mu
	commands []string // guarded by mu
}

const hang = "hang"

func startSMTP(t *testing.T, config *tls.Config, replies map[string]string) *smtpServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &smtpServer{listener: listener, tls: config, replies: replies}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { s.serve(t.Context(), conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		group.Wait()
	})
	return s
}

func (s *smtpServer) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if s.tls != nil {
		conn = tls.Server(conn, s.tls)
	}
	in := bufio.NewScanner(conn)
	if !s.reply(ctx, conn, "", "220 test") {
		return
	}
	for in.Scan() {
		line := in.Text()
		command := strings.ToUpper(strings.FieldsFunc(line+" ", func(r rune) bool { return r == ' ' || r == ':' })[0])
		s.mu.Lock()
		s.commands = append(s.commands, line)
		s.mu.Unlock()
		answer := "250 fine"
		switch command {
		case "EHLO":
			answer = "250-test\r\n250-ENHANCEDSTATUSCODES\r\n250 AUTH PLAIN"
		case "AUTH":
			answer = "235 welcome"
		case "DATA":
			answer = "354 go on"
		case "QUIT":
			answer = "221 bye"
		}
		if !s.reply(ctx, conn, command, answer) || command == "QUIT" {
			return
		}
		if command == "DATA" {
			var body strings.Builder
			for in.Scan() && in.Text() != "." {
				body.WriteString(in.Text() + "\r\n")
			}
			if s.replies["."] == "" {
				s.mu.Lock()
				s.mails = append(s.mails, body.String())
				s.mu.Unlock()
			}
			if !s.reply(ctx, conn, ".", "250 taken") {
				return
			}
		}
	}
}

func (s *smtpServer) reply(ctx context.Context, conn net.Conn, command, answer string) bool {
	if other := s.replies[command]; other != "" {
		answer = other
	}
	if answer == hang {
		<-ctx.Done()
		return false
	}
	_, err := fmt.Fprintf(conn, "%s\r\n", answer)
	return err == nil
}

func (s *smtpServer) received() []*mail.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var messages []*mail.Message
	for _, text := range s.mails {
		message, err := mail.ReadMessage(strings.NewReader(text))
		if err != nil {
			panic(err)
		}
		messages = append(messages, message)
	}
	return messages
}

func (s *smtpServer) notifier(t *testing.T, format string) *SMTPNotifier {
	t.Helper()
	notifier, err := NewSMTPNotifier(fmt.Sprintf(format, s.listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	return notifier
}

var lessonMail = Message{EventID: "01K0EVENT", UserID: 42, Subject: "Lesson completed: intro", Text: "Well done.\n.\nGo on."}

func TestSMTPNotifier_sendsTheSameMessageIDAtEveryAttempt(t *testing.T) {
	server := startSMTP(t, nil, nil)
	notifier := server.notifier(t, "smtp://%s?from=School+<school@example.com>&domain=example.org")
	for range 2 {
		if err := notifier.Notify(t.Context(), lessonMail); err != nil {
			t.Fatal(err)
		}
	}
	mails := server.received()
	if len(mails) != 2 {
		t.Fatalf("mails = %d, want 2", len(mails))
	}
	for _, mail := range mails {
		for name, want := range map[string]string{
			"Message-Id": "<01K0EVENT@walpost>", "To": "<user-42@example.org>",
			"From": `"School" <school@example.com>`, "Subject": "Lesson completed: intro",
		} {
			if got := mail.Header.Get(name); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

func TestSMTPNotifier_letsNoValueBeginAnotherHeader(t *testing.T) {
	server := startSMTP(t, nil, nil)
	notifier := server.notifier(t, "smtp://%s")
	evil := "x\r\nBcc: all@example.com\r\n\r\nbody\x00"
	if err := notifier.Notify(t.Context(), Message{EventID: evil + ">", UserID: 1, Subject: evil, Text: evil + "\r\n.\r\nMAIL FROM:<a@b>"}); err != nil {
		t.Fatal(err)
	}
	mails := server.received()
	if len(mails) != 1 {
		t.Fatalf("mails = %d, want 1", len(mails))
	}
	header := mails[0].Header
	if header.Get("Bcc") != "" {
		t.Errorf("a Bcc header was injected: %v", header)
	}
	if got := header.Get("Message-Id"); len(got) != 64+len("<@walpost>") {
		t.Errorf("Message-ID of an id that is none = %q, want a SHA-256", got)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	for _, command := range server.commands {
		if strings.Contains(command, "a@b") || strings.Contains(command, "all@") {
			t.Errorf("the mail became a command: %q", command)
		}
	}
}

func TestSMTPNotifier_isPermanentOnlyWhereTheRecipientIsRefusedForGood(t *testing.T) {
	for name, test := range map[string]struct {
		command, reply string
		want           bool
	}{
		"no such mailbox":       {"RCPT", "550 5.1.1 no such user", true},
		"no such mailbox, bare": {"RCPT", "550 no such user", true},
		"mailbox moved":         {"RCPT", "551 not local", true},
		"greylisted":            {"RCPT", "450 4.7.1 try later", false},
		"mailbox full":          {"RCPT", "452 4.2.2 over quota", false},
		"relaying denied":       {"RCPT", "554 5.7.1 relay access denied", false},
		"login needed":          {"RCPT", "530 5.7.0 log in first", false},
		"syntax":                {"RCPT", "501 what", false},
		"sender refused":        {"MAIL", "550 5.1.8 unknown sender", false},
		"server shuts down":     {"DATA", "421 4.3.2 going away", false},
		"content refused":       {".", "554 5.6.0 spam", false},
		"no service":            {"", "554 no service here", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := startSMTP(t, nil, map[string]string{test.command: test.reply})
			err := server.notifier(t, "smtp://%s").Notify(t.Context(), lessonMail)
			if err == nil {
				t.Fatal("Notify succeeded, want an error")
			}
			if got := subscriber.IsPermanent(err); got != test.want {
				t.Errorf("subscriber.IsPermanent(%v) = %v, want %v", err, got, test.want)
			}
		})
	}
}

func TestSMTPNotifier_returnsWhenTheServerHangsAndTheContextEnds(t *testing.T) {
	for _, command := range []string{"", "EHLO", "MAIL", "RCPT", "DATA", "."} {
		t.Run("at "+command, func(t *testing.T) {
			server := startSMTP(t, nil, map[string]string{command: hang})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := server.notifier(t, "smtp://%s").Notify(ctx, lessonMail)
			if !errors.Is(err, context.DeadlineExceeded) || subscriber.IsPermanent(err) {
				t.Errorf("Notify = %v, want the deadline", err)
			}
			if took := time.Since(began); took > mailTimeout/2 {
				t.Errorf("Notify took %s, want the deadline of the context", took)
			}
		})
	}
}

func TestSMTPNotifier_countsAMailAsSentWhoseFarewellGoesWrong(t *testing.T) {
	for _, reply := range []string{"500 what", hang} {
		server := startSMTP(t, nil, map[string]string{"QUIT": reply})
		if err := server.notifier(t, "smtp://%s").Notify(t.Context(), lessonMail); err != nil {
			t.Errorf("Notify when QUIT is answered by %q: %v", reply, err)
		}
		if got := len(server.received()); got != 1 {
			t.Errorf("mails = %d, want 1", got)
		}
	}
}

func TestSMTPNotifier_triesAgainWhenNoOneListens(t *testing.T) {
	server := startSMTP(t, nil, nil)
	server.listener.Close()
	if err := server.notifier(t, "smtp://%s").Notify(t.Context(), lessonMail); err == nil || subscriber.IsPermanent(err) {
		t.Errorf("Notify = %v, want an error that is not permanent", err)
	}
}

const password = `p@ss/w#rd%41?&:'"\ {}é`

// withPassword is a URL for localhost, to which go-mail sends a password without TLS.
const withPassword = "smtp://school:p%%40ss%%2Fw%%23rd%%2541%%3F%%26%%3A%%27%%22%%5C%%20%%7B%%7D%%C3%%A9@%s?tls=none"

// F-60
func TestSMTPNotifier_logsInWithAPasswordOfAnyCharacters(t *testing.T) {
	server := startSMTP(t, nil, nil)
	if err := server.notifier(t, withPassword).Notify(t.Context(), lessonMail); err != nil {
		t.Fatal(err)
	}
	want := "AUTH PLAIN " + base64.StdEncoding.EncodeToString([]byte("\x00school\x00"+password))
	server.mu.Lock()
	defer server.mu.Unlock()
	if !slices.Contains(server.commands, want) {
		t.Errorf("commands = %q, want %q", server.commands, want)
	}
}

// F-60
func TestSMTPNotifier_saysNothingOfThePassword(t *testing.T) {
	login := base64.StdEncoding.EncodeToString([]byte("\x00school\x00" + password))
	server := startSMTP(t, nil, map[string]string{"AUTH": "535 5.7.8 refused: " + login + " " + password})
	notifier := server.notifier(t, withPassword)
	err := notifier.Notify(t.Context(), lessonMail)
	if err == nil || subscriber.IsPermanent(err) {
		t.Fatalf("Notify = %v, want an error that is not permanent", err)
	}
	for _, text := range []string{
		err.Error(), fmt.Sprintf("%v %+v %#v %s", notifier, notifier, notifier, notifier),
		fmt.Sprintf("%v %+v %#v", *notifier, *notifier, *notifier),
	} {
		if strings.Contains(text, "w#rd") || strings.Contains(text, login) {
			t.Errorf("the password is in %q", text)
		}
	}
}

func TestSMTPNotifier_sendsNoPasswordWithoutTLS(t *testing.T) {
	server := startSMTP(t, nil, nil)
	notifier := server.notifier(t, "smtp://school:secret@%s") // the server offers no STARTTLS
	if err := notifier.Notify(t.Context(), lessonMail); err == nil {
		t.Error("Notify succeeded, want a refusal")
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	for _, command := range server.commands {
		if strings.HasPrefix(command, "AUTH") {
			t.Errorf("the client sent %q", command)
		}
	}
}

func TestSMTPNotifier_speaksTLSFromTheFirstByte(t *testing.T) {
	helper := httptest.NewTLSServer(nil) // only for its certificate
	defer helper.Close()
	server := startSMTP(t, &tls.Config{Certificates: helper.TLS.Certificates}, nil)
	notifier := server.notifier(t, "smtps://school:secret@%s")
	if err := notifier.Notify(t.Context(), lessonMail); err == nil || subscriber.IsPermanent(err) {
		t.Errorf("Notify with a certificate that no one signed = %v, want an error that is not permanent", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(helper.Certificate())
	notifier.roots = &tls.Config{RootCAs: roots}
	if err := notifier.Notify(t.Context(), lessonMail); err != nil {
		t.Fatal(err)
	}
	if got := len(server.received()); got != 1 {
		t.Errorf("mails = %d, want 1", got)
	}
}

func TestNewSMTPNotifier_refusesWhatItCannotReadWithoutRepeatingIt(t *testing.T) {
	for _, url := range []string{
		"", "secret", "http://u:secret@host", "smtp://", "smtp://:25", "smtp://u:secret@host:0", "smtp://u:secret@host:99999",
		"smtp://u:se/cret@host", "smtp://u:1/secret@host", "smtp://u:1#secret@host", "smtp://u:1?secret@host",
		"smtp://u:%zzsecret@host", "smtp://u:secret@host/path", "smtp://host?from=secret", "smtp://host?domain=a%0d%0asecret",
		"smtp://host?tls=secret", "smtps://host?tls=required", "smtp://host?form=a@secret.example", "smtp://host?a=%zzsecret",
		"smtp://u:secret\n@host",
	} {
		notifier, err := NewSMTPNotifier(url)
		if err == nil || notifier != nil {
			t.Errorf("NewSMTPNotifier(%q) = %v, %v, want an error", url, notifier, err)
		} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "se/cret") {
			t.Errorf("NewSMTPNotifier(%q) repeats the secret: %v", url, err)
		}
	}
}

func TestNewSMTPNotifier_choosesThePortByWhatIsAsked(t *testing.T) {
	for url, want := range map[string]string{
		"smtp://mail.example.com":                        "mail.example.com:25",
		"smtp://u:p@mail.example.com":                    "mail.example.com:587",
		"smtps://mail.example.com":                       "mail.example.com:465",
		"smtp://[::1]:1025?tls=opportunistic":            "[::1]:1025",
		"smtp://mail.example.com:2525/?from=a@b.invalid": "mail.example.com:2525",
	} {
		notifier, err := NewSMTPNotifier(url)
		if err != nil {
			t.Errorf("NewSMTPNotifier(%q): %v", url, err)
		} else if got := notifier.String(); got != want {
			t.Errorf("NewSMTPNotifier(%q) dials %s, want %s", url, got, want)
		}
	}
}

// S-07: a server that never stops talking, in one line or in many, costs neither memory nor time.
func TestSMTPNotifier_givesUpAServerThatNeverStopsTalking(t *testing.T) {
	for name, talk := range map[string]string{
		"a greeting in one line": strings.Repeat("x", 64<<10),
		"a greeting of lines":    strings.Repeat("220-hello\r\n", 6<<10),
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		sent := make(chan int, 1)
		go func() {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			defer connection.Close()
			total := 0
			for {
				n, err := io.WriteString(connection, talk)
				total += n
				if err != nil || total > 64<<20 {
					sent <- total
					return
				}
			}
		}()
		notifier, err := NewSMTPNotifier("smtp://" + listener.Addr().String() + "?tls=none")
		if err != nil {
			t.Fatal(err)
		}
		err = notifier.Notify(t.Context(), lessonMail)
		if err == nil || !strings.Contains(err.Error(), "says more than") || len(err.Error()) > 1200 {
			t.Errorf("%s: Notify = %.300v, want an error that says it, briefly", name, err)
		}
		if total := <-sent; total > 32<<20 {
			t.Errorf("%s: %d bytes were read", name, total)
		}
	}
}
