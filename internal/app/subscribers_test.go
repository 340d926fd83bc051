package app

import (
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

var discard = slog.New(slog.DiscardHandler)

// A new line in subscribers.go is held to the contract without a test of its own.
func TestSubscribers_keepTheContract(t *testing.T) {
	for name, kind := range Subscribers() {
		// A kind with keys of its own has its effect elsewhere, where Run cannot see it: its folder has the tests.
		if kind.Options != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			subscribertest.Run(t, func(t *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber {
				built, err := kind.New(Resources{Pool: pool, Slot: slot, Log: discard})
				if err != nil {
					t.Fatal(err)
				}
				return built
			})
		})
	}
}

func TestSubscribers_areThoseThatTheDefaultConfigurationNames(t *testing.T) {
	built, err := Subscribers().build(config.Lessons(), Resources{Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range config.LessonKinds {
		if got := built[i].Name(); got != name {
			t.Errorf("subscriber %d is %q, want %q", i, got, name)
		}
	}
	flow := config.Lessons()
	flow.Subscribers[0].Name = "medals"
	if _, err := Subscribers().build(flow, Resources{Log: discard}); err == nil {
		t.Error("a subscriber under another name would share its inbox with the first")
	}
	if _, err := Subscribers().build(config.Lessons(), Resources{Log: discard, Mail: config.Mail{SMTPURL: "gopher://mail"}}); err == nil {
		t.Error("a mail server with an unknown protocol is taken")
	}
}

// Who adds an option adds its row.
func TestDocs_haveEveryKeyOfEveryKind(t *testing.T) {
	var docs string
	for _, page := range []string{"configuration.md", "destinations.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		docs += string(text)
	}
	for name, kind := range Subscribers() {
		if kind.Options == nil {
			continue
		}
		var checkKeys func(prefix string, of reflect.Type)
		checkKeys = func(prefix string, of reflect.Type) {
			for i := range of.NumField() {
				key, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
				field := of.Field(i).Type
				if field.Kind() == reflect.Pointer {
					field = field.Elem()
				}
				if field.Kind() == reflect.Struct {
					checkKeys(prefix+key+".", field)
				} else if !strings.Contains(docs, "`"+prefix+key+"`") {
					t.Errorf("neither configuration.md nor destinations.md explains %s%s of %s", prefix, key, name)
				}
			}
		}
		checkKeys("", reflect.TypeOf(kind.Options()).Elem())
	}
}
