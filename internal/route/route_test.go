package route

import (
	"fmt"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
)

func TestTemplate_makesNamesOfEvents(t *testing.T) {
	e := &event.Event{Topic: "payments", Type: "payment.created", AggregateType: "Payment", Key: "k-1", Headers: []byte(`{"org": 7, "empty": "", "list": [1]}`)}
	for text, want := range map[string]string{
		"fixed":                               "fixed",
		"{topic}":                             "payments",
		"out.{aggregate_type}.{type}-{key}":   "out.Payment.payment.created-k-1",
		"org-{header.org}":                    "org-7",
		"{header.empty}":                      "error: {header.empty}: the event has no empty",
		"a.{header.none}":                     "error: a.{header.none}: the event has no none",
		"{header.list}":                       "error: {header.list}: the event has no list",
		"{topic}" + strings.Repeat("x", 245):  "error: the topic \"payments" + strings.Repeat("x", 52) + "\"… has 253 bytes, Kafka takes at most 249",
		"{topic}" + strings.Repeat(".x", 120): "payments" + strings.Repeat(".x", 120),
	} {
		template, err := Compile(text, Kafka)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := template.NameOf(e)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// F-42
func TestTemplate_refusesWhatIsNotLegal(t *testing.T) {
	template, err := Compile("{key}", Kafka)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "a b", "é", "a/b", "a\x00", ".", "..", "a\n", strings.Repeat("k", 250), "a\xff"} {
		if name, err := template.NameOf(&event.Event{Key: key}); err == nil {
			t.Errorf("key %q becomes the topic %q", key, name)
		}
	}
}

// F-42
func TestTemplate_refusesWhatIsNoSubject(t *testing.T) {
	template, err := Compile("thoughts.{type}", NATS)
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"", "a b", "a\x00", ".", "a.", ".a", "a..b", "a\n", "*", "a.*", ">", "a\u2003b", "a\xff", strings.Repeat("k", 1020)} {
		if name, err := template.NameOf(&event.Event{Type: subject}); err == nil {
			t.Errorf("type %q becomes the subject %q", subject, name)
		}
	}
	for _, subject := range []string{"thought.created", "created", "gedanke-ü/1:2"} {
		if name, err := template.NameOf(&event.Event{Type: subject}); err != nil || name != "thoughts."+subject {
			t.Errorf("type %q: %q, %v", subject, name, err)
		}
	}
}

func TestCompile_refusesWhatIsNoTemplate(t *testing.T) {
	for _, text := range []string{"", "{", "}", "a}", "{topic", "{Topic}", "{}", "{header.}", "{payload}", "{topic}}", "a b", "{{topic}}"} {
		if _, err := Compile(text, Kafka); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := Compile("", Rule{MayBeEmpty: true}); err != nil {
		t.Error(err)
	}
}

func TestNames_areBounded(t *testing.T) {
	names := NewNames(3)
	for round := range 2 {
		for i := range 3 {
			if err := names.Admit(fmt.Sprint(i)); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	if err := names.Admit("one more"); err == nil || !strings.Contains(err.Error(), "one more") {
		t.Errorf("got %v", err)
	}
}
