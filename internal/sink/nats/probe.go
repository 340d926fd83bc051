package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/backendstart/walpost/internal/subscriber"
)

// maxProbed bounds how many streams are looked at.
const maxProbed = 20

// Probe asks the servers whether they would take messages: reachable, the login, JetStream, a stream that captures the
// subject, the right to publish where the subject is a fixed one; and what the stream does with what it has taken. It
// sends no message to a stream and makes none.
func (n *NATS) Probe(ctx context.Context) error {
	login, _, err := n.login()
	if err != nil {
		return n.masked(err)
	}
	var urls []string
	for _, server := range n.Servers {
		url, _ := serverURL(server) // Check has looked at it
		urls = append(urls, url)
	}
	options := append(n.common(), client.NoReconnect(), client.ErrorHandler(func(*client.Conn, *client.Subscription, error) {}))
	if deadline, limited := ctx.Deadline(); limited {
		options = append(options, client.Timeout(max(time.Millisecond, min(dialFor, time.Until(deadline)))))
	}
	conn, err := client.Connect(strings.Join(urls, ","), append(options, login...)...)
	if err != nil {
		return n.masked(fmt.Errorf("connect to %s: %w", strings.Join(n.Servers, ", "), err))
	}
	defer conn.Close()
	return n.masked(n.probe(ctx, conn))
}

func (n *NATS) probe(ctx context.Context, conn *client.Conn) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	subject, fixed := n.subject.Fixed()
	if fixed {
		if err := mayPublish(ctx, conn, subject); err != nil {
			return err
		}
	} else {
		subject = filterOf(n.Subject)
	}
	lister := js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
	var names []string
	for name := range lister.Name() {
		if names = append(names, name); len(names) == maxProbed {
			break
		}
	}
	if err := lister.Err(); err != nil && len(names) == 0 {
		return fmt.Errorf("ask which stream captures %s: %w", subject, err)
	}
	if len(names) == 0 {
		return fmt.Errorf("no stream captures %s: make it, walpost makes none", subject)
	}
	var risks []string
	for _, name := range names {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("stream %s captures %s, and does not answer: %w", name, subject, err)
		}
		more, err := n.risksOf(stream.CachedInfo())
		if err != nil {
			return err
		}
		risks = append(risks, more...)
	}
	if len(risks) > 0 {
		return subscriber.Risk(errors.New(strings.Join(risks, "; ")))
	}
	return nil
}

// filterOf is what captures the subjects of a template: a part of the event can have several tokens.
func filterOf(template string) string {
	text := literal(template)
	return text[:strings.LastIndex(text, ".")+1] + ">"
}

// risksOf tells what a stream does that its sender should know. The error is of one that acknowledges nothing.
func (n *NATS) risksOf(info *jetstream.StreamInfo) (risks []string, err error) {
	c := info.Config
	switch {
	case c.NoAck:
		return nil, fmt.Errorf("stream %s has no_ack: it acknowledges nothing, and nothing would count as delivered", c.Name)
	case c.Sealed:
		return nil, fmt.Errorf("stream %s is sealed: it takes nothing", c.Name)
	}
	risk := func(format string, args ...any) {
		risks = append(risks, fmt.Sprintf("stream %s: "+format, append([]any{c.Name}, args...)...))
	}
	if outage := n.LongestOutage.Std(); outage > 0 && c.Duplicates < outage {
		risk("duplicate_window is %s, shorter than longest_outage (%s): what is sent again after such an outage is stored twice", c.Duplicates, outage)
	}
	if c.Storage == jetstream.MemoryStorage {
		risk("its storage is memory: what was acknowledged is lost when its servers stop")
	}
	if c.Replicas < 2 {
		risk("replicas is %d: what was acknowledged can be lost with one server", c.Replicas)
	}
	return risks, nil
}

// mayPublish asks the server which rights the user has. A server that does not tell leaves it open.
func mayPublish(ctx context.Context, conn *client.Conn, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := conn.RequestWithContext(ctx, "$SYS.REQ.USER.INFO", nil)
	if err != nil {
		return nil //nolint:nilerr // to publish needs no right to ask
	}
	var user struct {
		Data struct {
			Permissions *struct {
				Publish *struct{ Allow, Deny []string }
			}
		}
	}
	if err := json.Unmarshal(answer.Data, &user); err != nil || user.Data.Permissions == nil || user.Data.Permissions.Publish == nil {
		return nil //nolint:nilerr // the same
	}
	rights := user.Data.Permissions.Publish
	takes := func(filters []string) bool {
		for _, filter := range filters {
			if matches(filter, subject) {
				return true
			}
		}
		return false
	}
	if len(rights.Allow) > 0 && !takes(rights.Allow) || takes(rights.Deny) {
		return fmt.Errorf("no right to publish to %s", subject)
	}
	return nil
}
