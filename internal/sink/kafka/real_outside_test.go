//go:build outside

package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/sink/access"
	"github.com/backendstart/walpost/internal/sink/kafka"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
)

func open(t *testing.T, o kafka.Options) *kafka.Kafka {
	t.Helper()
	k, err := kafka.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// outcome sends and waits for all reports.
func outcome(t *testing.T, k *kafka.Kafka, deliveries ...subscriber.Delivery) []error {
	t.Helper()
	errs := make([]error, len(deliveries))
	var reports sync.WaitGroup
	reports.Add(len(deliveries))
	k.Send(t.Context(), deliveries, func(i int, err error) { errs[i] = err; reports.Done() })
	reports.Wait()
	return errs
}

// testBroker is what else is checked with a real broker; TestOutside_Kafka runs it.
func testBroker(t *testing.T, b *kafkatest.Broker) {
	t.Run("refuses the late record of a leader that was frozen", func(t *testing.T) { refusesTheLate(t, b) })
	t.Run("logs in by each mechanism and never shows the password", func(t *testing.T) { logsIn(t, b) })
	t.Run("speaks TLS with certificates from files", func(t *testing.T) { speaksTLS(t, b) })
	t.Run("waits for a topic that does not exist, and makes none", func(t *testing.T) { waitsForTopic(t, b) })
	t.Run("sends to a topic that was deleted and made again", func(t *testing.T) { sendsToRemadeTopic(t, b) })
	t.Run("waits for the right to write", func(t *testing.T) { waitsForRights(t, b) })
	t.Run("writes records as the docs say", func(t *testing.T) { writesRecords(t, b) })
	t.Run("waits in the program and says for what", func(t *testing.T) { waitsInTheProgram(t, b) })
	t.Run("stops in time while the broker hangs", func(t *testing.T) { stopsWhileTheBrokerHangs(t, b) })
	t.Run("tells what a broker would not take", func(t *testing.T) { probes(t, b) })
}

// Two relays have one transactional id. The first was frozen with a transaction open, and the second has sent since.
func refusesTheLate(t *testing.T, b *kafkatest.Broker) {
	o := newTopic(t, b, nil)
	transactional := options(b, o.name)
	transactional.ExactlyOnce = true
	first, second := open(t, transactional), open(t, transactional)
	sinktest.Eventually(t, "the first to begin", func() bool { // a new broker makes the topic of the offsets now
		return outcome(t, first, sinktest.Delivery(0))[0] == nil
	})
	if err := outcome(t, second, sinktest.Delivery(1))[0]; err != nil {
		t.Fatal(err)
	}
	late := outcome(t, first, sinktest.Delivery(2), sinktest.Delivery(3))
	for _, err := range late {
		if !errors.Is(err, subscriber.ErrOldTerm) || subscriber.IsPermanent(err) {
			t.Errorf("the late record of the first: got %v, want %v", err, subscriber.ErrOldTerm)
		}
	}
	// It does not take the id back by itself: only when it has the lead again, which begins with an Abort.
	if err := outcome(t, first, sinktest.Delivery(2))[0]; !errors.Is(err, subscriber.ErrOldTerm) {
		t.Errorf("once more: got %v", err)
	}
	if err := outcome(t, second, sinktest.Delivery(4))[0]; err != nil {
		t.Errorf("the second is disturbed: %v", err)
	}
	if err := first.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := outcome(t, first, sinktest.Delivery(5))[0]; err != nil {
		t.Errorf("the first, which has the lead again: %v", err)
	}
	var got []string
	for _, r := range o.Received(t) {
		got = append(got, r.ID)
	}
	want := []string{sinktest.Delivery(0).ID, sinktest.Delivery(1).ID, sinktest.Delivery(4).ID, sinktest.Delivery(5).ID}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
}

func logsIn(t *testing.T, b *kafkatest.Broker) {
	o := newTopic(t, b, nil)
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		_, err := b.Admin().AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: kafkatest.User, Mechanism: mechanism, Iterations: 4096, Password: kafkatest.Password}})
		if err != nil {
			t.Fatal(err)
		}
	}
	// An unsecured token, as the broker's own validator for tests takes it: {"alg":"none"} and a subject that expires in 2100.
	const token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3YWxwb3N0IiwiaWF0IjoxNzAwMDAwMDAwLCJleHAiOjQxMDI0NDQ4MDB9."
	for mechanism, right := range map[string]access.SASL{
		access.Plain:       {User: kafkatest.User, Password: kafkatest.Password},
		access.Scram256:    {User: kafkatest.User, Password: kafkatest.Password},
		access.Scram512:    {User: kafkatest.User, Password: kafkatest.Password},
		access.OAuthBearer: {Token: token},
	} {
		right.Mechanism = mechanism
		login := options(b, o.name)
		login.Brokers, login.SASL = []string{b.Auth()}, &right
		if err := outcome(t, open(t, login), sinktest.Delivery(0))[0]; err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		const secret = "a-secret-that-must-not-show"
		wrong := right
		if wrong.Password = config.Secret(secret); mechanism == access.OAuthBearer {
			wrong.Password, wrong.Token = "", config.Secret("eyJhbGciOiJub25lIn0."+secret+".")
		}
		login.SASL = &wrong
		err := outcome(t, open(t, login), sinktest.Delivery(0))[0]
		if !subscriber.IsAway(err) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s with a wrong secret: got %v, want Away without it", mechanism, err)
		}
		t.Log(mechanism, err)
		probe, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if err := open(t, login).Probe(probe); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s with a wrong secret: the probe says %v", mechanism, err)
		}
		cancel()
	}
}

func speaksTLS(t *testing.T, b *kafkatest.Broker) {
	o := newTopic(t, b, nil)
	ca, cert, key := b.Pair()
	secure := options(b, o.name)
	secure.Brokers = []string{b.Secure()}
	for name, test := range map[string]struct {
		tls  access.TLS
		want string
	}{
		"all of it":         {access.TLS{CA: ca, Cert: cert, Key: key}, ""},
		"an unknown signer": {access.TLS{Cert: cert, Key: key}, "certificate signed by unknown authority"},
		"another name":      {access.TLS{CA: ca, Cert: cert, Key: key, ServerName: "kafka.example"}, "kafka.example"},
		"no file":           {access.TLS{CA: "/nowhere/ca.pem"}, "/nowhere/ca.pem"},
		"no certificate":    {access.TLS{CA: ca}, "certificate"},
	} {
		secure.TLS = &test.tls
		err := outcome(t, open(t, secure), sinktest.Delivery(0))[0]
		if test.want == "" && err != nil || test.want != "" && (!subscriber.IsAway(err) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// The topic is deleted while the client has sent to it, and made again: later events go there, in order, and no other topic
// is disturbed. In transactions as well.
func sendsToRemadeTopic(t *testing.T, b *kafkatest.Broker) {
	for _, exactlyOnce := range []bool{false, true} {
		o, other := newTopic(t, b, nil), newTopic(t, b, nil)
		both := options(b, "{topic}")
		both.ExactlyOnce = exactlyOnce
		k := open(t, both)
		to := func(topic *topic, n int) subscriber.Delivery {
			d := sinktest.Delivery(n)
			changed := *d.Event
			changed.Topic, d.Event = topic.name, &changed
			return d
		}
		for n := range 3 {
			for _, err := range outcome(t, k, to(o, n), to(other, n)) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := b.Admin().DeleteTopics(t.Context(), o.name); err != nil {
			t.Fatal(err)
		}
		b.Topic(t, o.name, 1)
		for n := 3; n < 6; n++ {
			sinktest.Eventually(t, "the new topic takes events", func() bool { return outcome(t, k, to(o, n))[0] == nil })
			sinktest.Eventually(t, "the other topic takes events", func() bool { return outcome(t, k, to(other, n))[0] == nil })
		}
		for topic, first := range map[*topic]int{o: 3, other: 0} {
			var got, want []string
			for _, r := range topic.Received(t) {
				got = append(got, r.ID)
			}
			for n := first; n < 6; n++ {
				want = append(want, sinktest.Delivery(n).ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("exactly_once %v: topic %s has %q, want %q", exactlyOnce, topic.name, got, want)
			}
		}
	}
}

func waitsForTopic(t *testing.T, b *kafkatest.Broker) {
	k := open(t, options(b, "not-there-yet"))
	for range 2 {
		if err := outcome(t, k, sinktest.Delivery(0))[0]; !subscriber.IsAway(err) || !strings.Contains(err.Error(), "topic not-there-yet does not exist") {
			t.Errorf("got %v", err)
		}
	}
	if err := k.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("the probe says %v", err)
	}
	if listed, err := b.Admin().ListTopics(t.Context()); err != nil || listed.Has("not-there-yet") {
		t.Errorf("the topic was made, or %v", err)
	}
	b.Topic(t, "not-there-yet", 1)
	if err := outcome(t, k, sinktest.Delivery(0))[0]; err != nil {
		t.Errorf("when it is there: %v", err)
	}
}

func waitsForRights(t *testing.T, b *kafkatest.Broker) {
	o := newTopic(t, b, nil)
	deny := kadm.NewACLs().Topics(o.name).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kmsg.ACLOperationWrite, kmsg.ACLOperationDescribeConfigs).
		Deny("User:" + kafkatest.User).DenyHosts("*")
	if _, err := b.Admin().CreateACLs(t.Context(), deny); err != nil {
		t.Fatal(err)
	}
	login := options(b, o.name)
	login.Brokers, login.SASL = []string{b.Auth()}, &access.SASL{Mechanism: access.Plain, User: kafkatest.User, Password: kafkatest.Password}
	k := open(t, login)
	sinktest.Eventually(t, "the broker to refuse it", func() bool { // a rule is not in force at once
		err := outcome(t, k, sinktest.Delivery(0))[0]
		return subscriber.IsAway(err) && strings.Contains(err.Error(), "TOPIC_AUTHORIZATION_FAILED")
	})
	if err := k.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "Not authorized") && !strings.Contains(err.Error(), "no right to write") {
		t.Errorf("the probe says %v", err)
	}
	if _, err := b.Admin().DeleteACLs(t.Context(), deny); err != nil {
		t.Fatal(err)
	}
	sinktest.Eventually(t, "the broker to take it", func() bool { return outcome(t, k, sinktest.Delivery(0))[0] == nil })
}

// F-46, F-49, F-56
func writesRecords(t *testing.T, b *kafkatest.Broker) {
	e := &event.Event{
		Source: "shop", ID: "e-1", Type: "order.placed", Version: "2", AggregateType: "order", AggregateID: "7", Topic: "orders", Revision: "3",
		Key: "k", Payload: []byte(`{"n": 9007199254740993.10}`), OccurredAt: "2026-01-02 03:04:05+00",
		Headers: []byte(`{"correlation_id": "c-1", "org_id": 42, "traceparent": "00-1"}`), Position: event.Position{Commit: 0x16B3748, Ordinal: 1},
	}
	for format, want := range map[string]string{
		kafka.Payload: `k={"n": 9007199254740993.10} webhook-id=e-1 walpost-type=order.placed walpost-source=shop walpost-key=k walpost-position=` + e.Position.String() +
			` walpost-version=2 walpost-topic=orders walpost-aggregate=order/7 walpost-revision=3 x-correlation-id=c-1 walpost-header-org-id=42 traceparent=00-1` +
			` walpost-attempt=4 walpost-term=9 walpost-replay=true app=shop org=42`,
		kafka.CloudEvents:           ` ce_specversion=1.0 ce_id=e-1 ce_source=/walpost/shop ce_type=order.placed ce_subject=7 ce_time=2026-01-02T03:04:05Z ce_partitionkey=k`,
		kafka.CloudEventsStructured: `"data":{"n": 9007199254740993.10}} content-type=application/cloudevents+json; charset=utf-8`,
	} {
		o := newTopic(t, b, nil)
		with := options(b, o.name)
		with.Format, with.Headers = format, map[string]config.Secret{"app": "shop", "org": "{header.org_id}", "none": "{header.none}"}
		if err := outcome(t, open(t, with), subscriber.Delivery{Event: e, Attempt: 4, Term: 9, Replay: true})[0]; err != nil {
			t.Fatal(err)
		}
		r := b.Records(t, o.name)[0]
		got := string(r.Key) + "=" + string(r.Value)
		for _, h := range r.Headers {
			got += " " + h.Key + "=" + string(h.Value)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", format, got, want)
		}
	}
}

func probes(t *testing.T, b *kafkatest.Broker) {
	o := newTopic(t, b, nil)
	if err := open(t, options(b, "{topic}")).Probe(t.Context()); err != nil {
		t.Errorf("a topic that the events name: %v", err)
	}
	if err := open(t, options(b, o.name)).Probe(t.Context()); !subscriber.IsRisk(err) || !strings.Contains(err.Error(), "min.insync.replicas is 1") {
		t.Errorf("a topic that one broker keeps: %v", err)
	}
	away := options(b, o.name)
	away.Brokers = []string{"127.0.0.1:1"}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := open(t, away).Probe(ctx); err == nil {
		t.Error("a broker that is away is found")
	}
}
