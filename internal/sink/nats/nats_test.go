package nats_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/access"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/sink/nats"
	"github.com/backendstart/walpost/internal/sink/nats/natstest"
	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
)

var asAdmin = []client.Option{client.UserInfo("admin", "admin")}

func open(t *testing.T, o nats.Options) *nats.NATS {
	t.Helper()
	n, err := nats.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// outcome sends and waits for all reports.
func outcome(t *testing.T, n *nats.NATS, deliveries ...subscriber.Delivery) []error {
	t.Helper()
	errs := make([]error, len(deliveries))
	var reports sync.WaitGroup
	reports.Add(len(deliveries))
	n.Send(t.Context(), deliveries, func(i int, err error) { errs[i] = err; reports.Done() })
	reports.Wait()
	return errs
}

// eventually sends until it is taken.
func eventually(t *testing.T, n *nats.NATS, d subscriber.Delivery) {
	t.Helper()
	sinktest.Eventually(t, "delivered", func() bool { return outcome(t, n, d)[0] == nil })
}

// keyed is a delivery of a type and a key.
func keyed(i int, eventType, key string) subscriber.Delivery {
	d := sinktest.Delivery(i)
	event := *d.Event
	event.Type, event.Key = eventType, key
	d.Event = &event
	return d
}

// ids are what stands in a stream, in order.
func ids(t *testing.T, s *natstest.Server, stream string) []string {
	var all []string
	for _, m := range s.Messages(t, stream) {
		all = append(all, m.Header.Get("webhook-id"))
	}
	return all
}

func idOf(i int) string { return sinktest.Delivery(i).ID }

// learns sends until the stream is known, so that what follows goes in batches.
func learns(t *testing.T, n *nats.NATS, d subscriber.Delivery) {
	t.Helper()
	eventually(t, n, d)
	sinktest.Eventually(t, "the answer of the stream", func() bool { return n.Takes(d) })
}

func batched(t *testing.T, s *natstest.Server, name string) *nats.NATS {
	t.Helper()
	s.Stream(t, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, AllowAtomicPublish: true})
	n := open(t, options(s, name+".{type}"))
	n.BatchFrom(1)
	learns(t, n, keyed(0, "made", "first"))
	return n
}

func TestNATS_sendsACallAsOneBatchThatIsStoredWhole(t *testing.T) {
	s := natstest.Start(t)
	n := batched(t, s, "whole")
	var call []subscriber.Delivery
	for i := 1; i <= 1500; i++ { // more than a batch may have
		call = append(call, keyed(i, "made", fmt.Sprint(i/300)))
	}
	for i, err := range outcome(t, n, call...) {
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	batches := map[string]int{}
	for i, m := range s.Messages(t, "whole")[1:] {
		if got := m.Header.Get("webhook-id"); got != idOf(i+1) {
			t.Fatalf("message %d is of event %s", i, got)
		}
		batches[m.Header.Get("Nats-Batch-Id")]++
	}
	if len(batches) != 2 || batches[""] != 0 {
		t.Errorf("batches: %v, want two", batches)
	}
}

// S-400: the server refuses a whole batch for one message that it has already. After a crash there is always one.
func TestNATS_sendsByWavesWhatABatchIsRefusedFor(t *testing.T) {
	s := natstest.Start(t)
	n := batched(t, s, "again")
	again := []subscriber.Delivery{keyed(1, "made", "a"), keyed(2, "made", "b"), keyed(3, "made", "a")}
	if errs := outcome(t, n, again[1]); errs[0] != nil {
		t.Fatal(errs[0])
	}
	for i, err := range outcome(t, n, append(again, keyed(4, "made", "b"))...) {
		if err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if got, want := ids(t, s, "again"), []string{idOf(0), idOf(2), idOf(1), idOf(4), idOf(3)}; len(got) != len(want) || slices.Index(got, idOf(3)) < slices.Index(got, idOf(1)) {
		t.Errorf("the stream has %q, want those of %q, and the first before the third", got, want)
	}
}

// A message that the stream refuses is found, although the server says only that the batch was incomplete.
func TestNATS_findsTheMessageForWhichABatchIsRefused(t *testing.T) {
	s := natstest.Start(t)
	n := batched(t, s, "small")
	s.Stream(t, jetstream.StreamConfig{Name: "small", Subjects: []string{"small.>"}, AllowAtomicPublish: true, MaxMsgSize: 2000})
	large := keyed(2, "made", "b")
	large.Payload = fmt.Appendf(nil, `"%s"`, strings.Repeat("x", 3000))
	errs := outcome(t, n, keyed(1, "made", "a"), large, keyed(3, "made", "b"), keyed(4, "made", "c"))
	if errs[0] != nil || !subscriber.IsPermanent(errs[1]) || !errors.Is(errs[2], subscriber.ErrHeld) || errs[3] != nil {
		t.Fatalf("got %v", errs)
	}
	for _, want := range []string{"the message has 3", "stream small takes 2000 (max_msg_size)"} {
		if !strings.Contains(errs[1].Error(), want) {
			t.Errorf("the reason is %q, want %q in it", errs[1], want)
		}
	}
}

// S-401: max_payload counts the headers.
func TestNATS_tellsBothSizesOfAMessageOverMaxPayload(t *testing.T) {
	s := natstest.Start(t, limit)
	o := newStream(t, s, false, nil)
	n := open(t, options(s, o.name+".{type}"))
	eventually(t, n, keyed(0, "made", "a"))
	largest := 0 // that the server takes
	for size := maxPayload - 1000; size <= maxPayload; size++ {
		d := keyed(1, "made", "a")
		d.Payload, d.PayloadType = []byte(strings.Repeat("x", size)), event.Text
		if d.ID = fmt.Sprint("size-", size); size%100 != 0 && size < maxPayload-400 {
			continue
		}
		switch err := outcome(t, n, d)[0]; {
		case err == nil:
			largest = size
		case !subscriber.IsPermanent(err) || !strings.Contains(err.Error(), "the server takes 100000 (max_payload)"):
			t.Fatalf("%d bytes: %v", size, err)
		case largest == 0 || !strings.Contains(err.Error(), "has 100001 bytes"):
			t.Fatalf("the first that is refused has %d bytes, after one of %d: %v", size, largest, err)
		default:
			return
		}
	}
	t.Error("none was refused")
}

// S-402: what data has made must not reach the subjects on which the server takes commands.
func TestNATS_sendsNothingToSubjectsOfTheServer(t *testing.T) {
	s := natstest.Start(t)
	s.Stream(t, jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept"}})
	n := open(t, options(s, "{type}"))
	for _, subject := range []string{"$JS.API.STREAM.DELETE.kept", "_INBOX.x", "$SYS.REQ.SERVER.PING", "a b", "a.*", "a.>", "a..b", ".a", "a.", "", "a\nb", strings.Repeat("x", 1025)} {
		if err := outcome(t, n, keyed(1, subject, "a"))[0]; !subscriber.IsPermanent(err) {
			t.Errorf("subject %q: %v, want a permanent error", subject, err)
		}
	}
	if _, err := s.JetStream().Stream(t.Context(), "kept"); err != nil {
		t.Errorf("the stream: %v", err)
	}
	s.Stream(t, jetstream.StreamConfig{Name: "KV_state", Subjects: []string{"$KV.state.>"}})
	bucket := open(t, options(s, "$KV.state.{key}")) // the configuration wants it
	if err := outcome(t, bucket, keyed(1, "made", "a"))[0]; err != nil {
		t.Error(err)
	}
}

// S-403: an id that comes again with another occurrence is another event, and two subscribers of one stream have different
// ones: the server must not take one of them for a repetition of the other.
func TestNATS_isNoDuplicateOfAnotherEvent(t *testing.T) {
	s := natstest.Start(t)
	o := newStream(t, s, false, nil)
	n := open(t, options(s, o.name+".{type}"))
	second := options(s, o.name+".second.{type}")
	second.Name = "second"
	m := open(t, second)
	d := keyed(1, "made", "a")
	event := *d.Event
	event.Occurrence = "2026-05-05 05:05:05+00"
	other := d
	other.Event = &event
	replayed := d
	replayed.Replay, replayed.Again = true, time.Now()
	for range 2 { // the second time all are duplicates
		for _, err := range append(outcome(t, n, d, other, replayed), outcome(t, m, d)...) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := len(s.Messages(t, o.name)); got != 4 {
		t.Errorf("the stream has %d messages, want 4", got)
	}
}

// F-42: what is not legal in a header comes through, and a header of the row is none of the server's.
func TestNATS_writesMessagesAsTheDocsSay(t *testing.T) {
	s := natstest.Start(t)
	o := newStream(t, s, false, nil)
	configured := options(s, o.name+".{type}")
	configured.Headers = map[string]config.Secret{"app": "shop one", "org": "{header.org}"}
	n := open(t, configured)
	d := keyed(1, "thought.created", " a\r\nX-Injected: 1 é")
	d.Term, d.Attempt, d.AggregateType, d.AggregateID, d.Revision = 7, 3, "Thought", "t/1", "9"
	d.Headers = []byte(`{"correlation_id": "c 1", "traceparent": "00-1", "org_id": "o", "org": "a\nb", "Nats-Rollup": "all", "x: y": "z"}`)
	if err := outcome(t, n, d)[0]; err != nil {
		t.Fatal(err)
	}
	m := s.Messages(t, o.name)[0]
	if m.Subject != o.name+".thought.created" || string(m.Data) != string(d.Payload) {
		t.Errorf("subject %s, data %s", m.Subject, m.Data)
	}
	want := map[string]string{
		"webhook-id": d.ID, "walpost-type": "thought.created", "walpost-source": "shop", "walpost-position": d.Position.String(),
		"walpost-aggregate": "Thought/t/1", "walpost-revision": "9", "walpost-attempt": "3", "walpost-term": "7",
		"x-correlation-id": "c%201", "traceparent": "00-1", "walpost-header-org-id": "o", "walpost-header-org": "a%0Ab",
		"walpost-header-nats-rollup": "all", "app": "shop one", "org": "a%0Ab",
	}
	for name, value := range want {
		if got := m.Header.Get(name); got != value {
			t.Errorf("header %s is %q, want %q", name, got, value)
		}
	}
	if got := decoded(t, m.Header.Get("walpost-key")); got != d.Key {
		t.Errorf("the key is %q, want %q", got, d.Key)
	}
	if id := m.Header.Get("Nats-Msg-Id"); !strings.HasPrefix(id, d.ID+".") {
		t.Errorf("Nats-Msg-Id is %q", id)
	}
	if len(m.Header) != len(want)+2 {
		t.Errorf("there are other headers: %v", m.Header)
	}
	structured := options(s, o.name+".{type}")
	structured.Format = nats.CloudEventsStructured
	binary := options(s, o.name+".{type}")
	binary.Format = nats.CloudEvents
	for _, err := range append(outcome(t, open(t, structured), keyed(2, "made", "k")), outcome(t, open(t, binary), keyed(3, "made", "k"))...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	messages := s.Messages(t, o.name)
	if m := messages[1]; !strings.Contains(string(m.Data), `"specversion":"1.0"`) || !strings.HasPrefix(m.Header.Get("content-type"), "application/cloudevents+json") {
		t.Errorf("structured: %v, %s", m.Header, m.Data)
	}
	if m := messages[2]; m.Header.Get("ce-type") != "made" || m.Header.Get("ce-source") != "/walpost/shop" || m.Header.Get("content-type") != "application/json" {
		t.Errorf("binary: %v", m.Header)
	}
}

// S-404: a total order holds among events of different keys that go out in one call.
func TestNATS_keepsATotalOrder(t *testing.T) {
	s := natstest.Start(t)
	o := newStream(t, s, false, nil)
	total := options(s, o.name+".{type}")
	total.Ordering = "total"
	n := open(t, total)
	bad := keyed(2, "made", "b")
	bad.Payload = []byte("\\xZZ")
	bad.PayloadType = event.Binary // no bytea
	errs := outcome(t, n, keyed(1, "made", "a"), bad, keyed(3, "made", "c"))
	if errs[0] != nil || !subscriber.IsPermanent(errs[1]) || !errors.Is(errs[2], subscriber.ErrHeld) {
		t.Errorf("got %v, want what follows the bad one held", errs)
	}
	var call []subscriber.Delivery
	var want []string
	for i := 10; i < 40; i++ {
		call = append(call, keyed(i, "made", fmt.Sprint(i)))
		want = append(want, idOf(i))
	}
	outcome(t, n, call...)
	if got := ids(t, s, o.name)[1:]; !slices.Equal(got, want) {
		t.Errorf("arrived %q", got)
	}
}

// A stream that is not there, is sealed, full, or deleted and made again: its events wait, and are never dead letters.
func TestNATS_waitsForAStream(t *testing.T) {
	s := natstest.Start(t)
	n := open(t, options(s, "{type}"))
	away := func(what, want string, d subscriber.Delivery) {
		t.Helper()
		if err := outcome(t, n, d)[0]; !subscriber.IsAway(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it away with %q", what, err, want)
		}
	}
	away("no stream", "no stream captures subject late.made", keyed(1, "late.made", "a"))
	config := jetstream.StreamConfig{Name: "late", Subjects: []string{"late.>"}, AllowAtomicPublish: true}
	s.Stream(t, config)
	learns(t, n, keyed(1, "late.made", "a"))
	sealed := config
	sealed.Sealed = true
	s.Stream(t, sealed)
	away("sealed", "sealed", keyed(2, "late.made", "a"))
	if err := s.JetStream().DeleteStream(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	n.BatchFrom(1)
	for _, err := range outcome(t, n, keyed(3, "late.made", "a"), keyed(4, "late.made", "b")) {
		if !subscriber.IsAway(err) || !strings.Contains(err.Error(), "no stream captures") {
			t.Errorf("deleted: %v", err)
		}
	}
	full := config
	full.MaxMsgs, full.Discard = 1, jetstream.DiscardNew
	s.Stream(t, full)
	for i, err := range outcome(t, n, keyed(5, "late.made", "a"), keyed(6, "late.made", "a")) {
		if i == 0 && err != nil || i == 1 && !subscriber.IsAway(err) {
			t.Errorf("full, event %d: %v", i, err)
		}
	}
	if got := ids(t, s, "late"); !slices.Equal(got, []string{idOf(5)}) {
		t.Errorf("the stream has %q", got)
	}
}

// One subject without a stream delays no other.
func TestNATS_anAbsentStreamDelaysNoOther(t *testing.T) {
	s := natstest.Start(t)
	s.Stream(t, jetstream.StreamConfig{Name: "there", Subjects: []string{"there.>"}})
	n := open(t, options(s, "{type}"))
	errs := outcome(t, n, keyed(1, "there.made", "a"), keyed(2, "absent.made", "b"), keyed(3, "there.made", "b"), keyed(4, "there.made", "c"))
	if errs[0] != nil || !subscriber.IsAway(errs[1]) || !errors.Is(errs[2], subscriber.ErrHeld) && errs[2] != nil || errs[3] != nil {
		t.Errorf("got %v", errs)
	}
}

func TestNATS_waitsForTheRightToPublish(t *testing.T) {
	users := func(more string) string {
		return fmt.Sprintf(`authorization { users = [ {user: admin, password: admin},
			{user: walpost, password: %q, permissions: {publish: ["mine.made"%s, "$JS.API.>"], subscribe: ["_INBOX.>"]}} ] }`, password, more)
	}
	s := natstest.StartWithLogin(t, asAdmin, users(""))
	s.Stream(t, jetstream.StreamConfig{Name: "mine", Subjects: []string{"mine.>"}})
	o := options(s, "{type}")
	o.Timeout = time.Minute // the server says so long before
	o.Auth = &nats.Auth{User: "walpost", Password: password}
	n := open(t, o)
	eventually(t, n, keyed(1, "mine.made", "a"))
	begun := time.Now()
	for range 3 {
		if err := outcome(t, n, keyed(2, "mine.other", "a"))[0]; !subscriber.IsAway(err) || !strings.Contains(strings.ToLower(err.Error()), `permissions violation for publish to "mine.other"`) {
			t.Errorf("without the right: %v", err)
		}
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("that was said after %s", took)
	}
	s.Down(t)
	s.Configure(users(`, "mine.other"`))
	s.Up(t)
	eventually(t, n, keyed(2, "mine.other", "a"))
}

// With a wrong login the server's own words are told, without the secret, and it goes on by itself when that is right.
func TestNATS_logsInByEachWayAndShowsNoSecret(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seedOf := func(pair nkeys.KeyPair) string {
		seed, err := pair.Seed()
		if err != nil {
			t.Fatal(err)
		}
		return string(seed)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	operator, trusted := newOperator(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "login")
	live := config.Secret(safefile.Live(file, ""))
	for name, test := range map[string]struct {
		admin        []client.Option
		server       string
		auth         *nats.Auth
		wrong, right string
	}{
		"password": {asAdmin, fmt.Sprintf(`authorization { users = [ {user: admin, password: admin}, {user: walpost, password: %q} ] }`, password),
			&nats.Auth{User: "walpost", Password: live}, "wr0ng-s3cr3t", password},
		"token": {[]client.Option{client.Token(password)}, fmt.Sprintf(`authorization { token: %q }`, password), &nats.Auth{Token: live}, "wr0ng-s3cr3t", password},
		"nkey": {asAdmin, fmt.Sprintf(`authorization { users = [ {user: admin, password: admin}, {nkey: %s} ] }`, public),
			&nats.Auth{NKey: file}, seedOf(stranger), seedOf(user)},
		"credentials": {[]client.Option{client.UserCredentialBytes([]byte(operator.credentials(t, false)))}, trusted,
			&nats.Auth{Credentials: file}, operator.credentials(t, true), operator.credentials(t, false)},
	} {
		t.Run(name, func(t *testing.T) {
			s := natstest.StartWithLogin(t, test.admin, test.server)
			s.Stream(t, jetstream.StreamConfig{Name: "s", Subjects: []string{"made"}})
			o := options(s, "{type}")
			o.Auth = test.auth
			n := open(t, o)
			_ = os.Remove(file)
			if err := outcome(t, n, keyed(1, "made", "a"))[0]; err == nil || !subscriber.IsAway(err) {
				t.Errorf("without a file: %v, want it away", err)
			}
			write(t, file, test.wrong)
			sinktest.Eventually(t, "the server's words", func() bool {
				err := outcome(t, n, keyed(1, "made", "a"))[0]
				if !subscriber.IsAway(err) {
					t.Fatalf("with a wrong login: %v", err)
				}
				if strings.Contains(err.Error(), test.wrong) {
					t.Fatalf("the secret is shown: %v", err)
				}
				return strings.Contains(err.Error(), "Authorization Violation")
			})
			if err := n.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "Authorization Violation") || strings.Contains(err.Error(), test.wrong) {
				t.Errorf("probe with a wrong login: %v", err)
			}
			write(t, file, test.right)
			eventually(t, n, keyed(1, "made", "a"))
			if err := n.Probe(t.Context()); err != nil && !subscriber.IsRisk(err) {
				t.Errorf("probe: %v", err)
			}
		})
	}
}

// operator signs users, as nsc does.
type operator struct {
	account nkeys.KeyPair
}

func newOperator(t *testing.T) (operator, string) {
	t.Helper()
	must := func(pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return pair, public
	}
	own, ownID := must(nkeys.CreateOperator())
	_, systemID := must(nkeys.CreateAccount())
	account, accountID := must(nkeys.CreateAccount())
	claims := jwt.NewOperatorClaims(ownID)
	signed, err := claims.Encode(own)
	if err != nil {
		t.Fatal(err)
	}
	of := jwt.NewAccountClaims(accountID)
	of.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	ofSigned, err := of.Encode(own)
	if err != nil {
		t.Fatal(err)
	}
	system, err := jwt.NewAccountClaims(systemID).Encode(own)
	if err != nil {
		t.Fatal(err)
	}
	return operator{account: account}, fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }",
		signed, systemID, systemID, system, accountID, ofSigned)
}

// credentials are the file of a user, expired or not.
func (o operator) credentials(t *testing.T, expired bool) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.NewUserClaims(public)
	if expired {
		claims.Expires = time.Now().Add(-time.Hour).Unix()
	}
	signed, err := claims.Encode(o.account)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(signed, seed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNATS_speaksTLSWithCertificatesFromFiles(t *testing.T) {
	pair := kafkatest.NewPair(t)
	folder := t.TempDir()
	pair.Write(t, folder)
	at := func(name string) string { return filepath.Join(folder, name) }
	s := natstest.StartWithLogin(t, []client.Option{client.RootCAs(at("ca.pem")), client.ClientCert(at("client.pem"), at("client-key.pem"))},
		fmt.Sprintf(`tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }`, at("server.pem"), at("server.pem"), at("ca.pem")))
	s.Stream(t, jetstream.StreamConfig{Name: "s", Subjects: []string{"made"}})
	o := options(s, "{type}")
	o.TLS = &access.TLS{CA: at("ca.pem"), Cert: at("client.pem"), Key: at("client-key.pem")}
	n := open(t, o)
	eventually(t, n, keyed(1, "made", "a"))
	without := options(s, "{type}")
	without.TLS = &access.TLS{CA: at("ca.pem")}
	if err := outcome(t, open(t, without), keyed(2, "made", "a"))[0]; !subscriber.IsAway(err) {
		t.Errorf("without a certificate of our own: %v", err)
	}
	unknown := options(s, "{type}")
	unknown.TLS = &access.TLS{}
	if err := open(t, unknown).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority: %v", err)
	}
}

// S-405: what was sent while the connection is cut must not come later, under a leadership that is over.
func TestNATS_keepsNothingForAConnectionThatIsCut(t *testing.T) {
	s := natstest.Start(t)
	o := newStream(t, s, false, nil)
	n := open(t, options(s, o.name+".{type}"))
	eventually(t, n, keyed(1, "made", "a"))
	s.Down(t)
	sinktest.Eventually(t, "the client to notice", func() bool {
		err := outcome(t, n, keyed(2, "made", "a"))[0]
		if !subscriber.IsAway(err) {
			t.Fatalf("while the server is down: %v", err)
		}
		return strings.Contains(err.Error(), "not connected to "+s.Address())
	})
	for i := 3; i < 100; i++ {
		if err := outcome(t, n, keyed(i, "made", "a"))[0]; !subscriber.IsAway(err) {
			t.Fatalf("while the server is down: %v", err)
		}
	}
	s.Up(t)
	eventually(t, n, keyed(100, "made", "b"))
	if got := ids(t, s, o.name); !slices.Equal(got, []string{idOf(1), idOf(100)}) {
		t.Errorf("the stream has %q", got)
	}
}

// S-406: a server that hangs has taken a message into its socket. Abort ends in time, and what is sent then stands in front.
func TestNATS_abortsWhileTheServerHangs(t *testing.T) {
	s := natstest.Start(t)
	for _, atomically := range []bool{false, true} {
		o := newStream(t, s, atomically, nil)
		n := open(t, options(s, o.name+".{type}"))
		n.BatchFrom(1)
		learns(t, n, keyed(0, "made", "a"))
		thaw := s.Freeze(t)
		written := n.Written()
		lead, lose := context.WithCancelCause(t.Context())
		var mu sync.Mutex
		reports := map[int]error{}
		var all sync.WaitGroup
		all.Add(3)
		n.Send(lead, []subscriber.Delivery{keyed(1, "made", "a"), keyed(2, "made", "a"), keyed(3, "made", "b")}, func(i int, err error) {
			mu.Lock()
			defer mu.Unlock()
			reports[i] = err
			all.Done()
		})
		sinktest.Eventually(t, "the messages to be on their way", func() bool { return n.Written() > written })
		lose(errors.New("the lead is lost"))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := n.Abort(ctx)
		cancel()
		if err == nil {
			t.Error("Abort knows what has become of messages to a server that hangs")
		}
		all.Wait()
		for i, err := range reports {
			if err == nil || subscriber.IsPermanent(err) {
				t.Errorf("event %d: %v", i, err)
			}
		}
		thaw()
		eventually(t, n, keyed(1, "made", "a"))
		eventually(t, n, keyed(2, "made", "a"))
		if got := ids(t, s, o.name); slices.Index(got, idOf(2)) < slices.Index(got, idOf(1)) {
			t.Errorf("the stream has %q", got)
		}
	}
}

// S-408: what was given up after the timeout can still be stored. Abort waits for the answer to it, too.
func TestNATS_storesNothingAfterAbortThatWasGivenUpBefore(t *testing.T) {
	s := natstest.Start(t)
	for _, atomically := range []bool{false, true} {
		o := newStream(t, s, atomically, nil)
		n := open(t, options(s, o.name+".{type}"))
		n.BatchFrom(1)
		learns(t, n, keyed(0, "made", "a"))
		n.Timeout = 50 * time.Millisecond
		thaw := s.Freeze(t)
		for i, err := range outcome(t, n, keyed(1, "made", "a"), keyed(2, "made", "b")) {
			if !subscriber.IsAway(err) || !strings.Contains(err.Error(), "not acknowledged within 50ms") {
				t.Errorf("event %d: %v", i, err)
			}
		}
		aborted := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { aborted <- n.Abort(ctx) }()
		select {
		case err := <-aborted:
			t.Errorf("Abort returns while the messages are on their way: %v", err)
			thaw()
		case <-time.After(200 * time.Millisecond):
			thaw()
			if err := <-aborted; err != nil {
				t.Errorf("abort: %v", err)
			}
		}
		if got := ids(t, s, o.name); len(got) != 3 {
			t.Errorf("the stream has %q when Abort has returned, want what was on its way", got)
		}
	}
}

// S-407: who makes up subjects has a bound, and those that exist go on.
func TestNATS_boundsHowManySubjectsDataCanMake(t *testing.T) {
	s := natstest.Start(t)
	o := newStream(t, s, false, nil)
	bounded := options(s, o.name+".{type}")
	bounded.MaxSubjects = 2
	n := open(t, bounded)
	learns(t, n, keyed(0, "a", "a"))
	for i, subject := range []string{"a", "b", "c", "a"} {
		if err := outcome(t, n, keyed(i+1, subject, "a"))[0]; (subject == "c") != subscriber.IsAway(err) || (subject == "c") == (err == nil) {
			t.Errorf("subject %s: %v", subject, err)
		}
	}
}

func TestNATS_probesWhatItsEventsMeet(t *testing.T) {
	s := natstest.Start(t)
	probe := func(subject string) error { return open(t, options(s, subject)).Probe(t.Context()) }
	wants := func(what string, err error, risk bool, texts ...string) {
		t.Helper()
		if err == nil || subscriber.IsRisk(err) != risk {
			t.Fatalf("%s: got %v, want a risk: %t", what, err, risk)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got %v, want %q in it", what, err, text)
			}
		}
	}
	wants("no stream", probe("thoughts.{type}"), false, "no stream captures thoughts.>: make it, walpost makes none")
	wants("no stream for a name", probe("thoughts.made"), false, "no stream captures thoughts.made")
	s.Stream(t, jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}})
	wants("a stream as it is by default", probe("thoughts.{type}"), true,
		"duplicate_window is 2m0s, shorter than longest_outage (1h0m0s)", "replicas is 1")
	s.Stream(t, jetstream.StreamConfig{Name: "thoughts", Subjects: []string{"thoughts.>"}, Duplicates: 2 * time.Hour})
	if err := probe("thoughts.made"); !subscriber.IsRisk(err) || strings.Contains(err.Error(), "duplicate_window") {
		t.Errorf("a long window: %v", err)
	}
	s.Stream(t, jetstream.StreamConfig{Name: "silent", Subjects: []string{"silent"}, NoAck: true})
	wants("a stream that acknowledges nothing", probe("silent"), false, "no_ack")
	s.Down(t)
	wants("a server that is away", probe("thoughts.made"), false, "connect to "+s.Address())
}

// BenchmarkNATS measures what a batch costs and brings: of one key and of many, by how many events a call has.
func BenchmarkNATS(b *testing.B) {
	cluster := natstest.StartCluster(b, 3)
	single := natstest.Start(b)
	for name, config := range map[string]jetstream.StreamConfig{
		"file": {}, "memory": {Storage: jetstream.MemoryStorage}, "replicas": {Replicas: 3},
	} {
		s := single
		if config.Replicas > 1 {
			s = cluster[0]
		}
		for _, config.AllowAtomicPublish = range []bool{false, true} {
			for _, keys := range []int{1, 100} {
				for _, size := range []int{5, 20, 100, 500} {
					b.Run(fmt.Sprintf("%s/batches=%t/keys=%d/call=%d", name, config.AllowAtomicPublish, keys, size), func(b *testing.B) {
						benchmark(b, s, config, keys, size)
					})
				}
			}
		}
	}
}

func benchmark(b *testing.B, s *natstest.Server, config jetstream.StreamConfig, keys, size int) {
	config.Name = fmt.Sprintf("bench-%d", streams.Add(1))
	config.Subjects = []string{config.Name + ".>"}
	s.Stream(b, config)
	patient := options(s, config.Name+".{type}")
	patient.Timeout = time.Minute
	n, err := nats.New(patient)
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	n.BatchFrom(1)
	sent := 0
	call := func(size int) {
		deliveries := make([]subscriber.Delivery, size)
		for i := range deliveries {
			deliveries[i] = keyed(sent, "order.placed", fmt.Sprint(i*keys/size))
			sent++
		}
		var reports sync.WaitGroup
		reports.Add(size)
		n.Send(b.Context(), deliveries, func(_ int, err error) {
			if err != nil {
				b.Error(err)
			}
			reports.Done()
		})
		reports.Wait()
	}
	for !n.Takes(keyed(0, "order.placed", "")) {
		call(1)
	}
	b.ResetTimer()
	for sent := 0; sent < b.N; sent += size {
		call(min(size, b.N-sent))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
