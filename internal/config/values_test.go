package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

func TestSecret_printsAsAMaskEverywhere(t *testing.T) {
	secret := Secret("hunter2")
	both := struct {
		S Secret
		P *Secret
		M map[string]Secret
	}{secret, &secret, map[string]Secret{"k": secret}}
	var printed strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T %v"} {
		fmt.Fprintf(&printed, verb+"\n", secret)
		fmt.Fprintf(&printed, verb+"\n", both)
	}
	asJSON, err := json.Marshal(both)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(both)
	if err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&printed, nil)).Info("x", "secret", secret, "both", both)
	slog.New(slog.NewJSONHandler(&printed, nil)).Info("x", "secret", secret, "both", both)
	all := printed.String() + string(asJSON) + string(asYAML) + fmt.Errorf("open: %v", secret).Error()
	if strings.Contains(all, "hunter2") || strings.Contains(all, fmt.Sprintf("%x", "hunter2")) {
		t.Errorf("the secret is visible in\n%s", all)
	}
	if !strings.Contains(string(asJSON), Mask) || !strings.Contains(string(asYAML), Mask) {
		t.Errorf("no mask in %s and %s", asJSON, asYAML)
	}
	if got, want := secret.Reveal(), "hunter2"; got != want {
		t.Errorf("Reveal is %q, want %q", got, want)
	}
	if got, want := fmt.Sprintf("%s|%v", Secret(""), Secret("")), "|"; got != want {
		t.Errorf("an empty secret prints %q, want %q: that it is not set must be seen", got, want)
	}
}

func TestParseSize_readsWhatStringWrites(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "512": 512, "1KiB": 1024, "32MiB": 32 << 20, "10GiB": 10 << 30, "2TiB": 2 << 40, "10 GiB": 10 << 30,
	} {
		got, err := ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s is %d, %v, want %d", text, got, err, want)
		}
		if again, err := ParseSize(got.String()); err != nil || again != want {
			t.Errorf("%s is written as %s, which is %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5GiB", "10GB", "10g", "MiB", "unlimited", "9999999999TiB", "99999999999999999999", "1e9"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

func TestParseDuration_knowsDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "200ms": 200 * time.Millisecond, "1m30s": 90 * time.Second, "168h": 168 * time.Hour, "7d": 168 * time.Hour,
		"1d12h": 36 * time.Hour,
	} {
		if got, err := ParseDuration(text); err != nil || got.Std() != want {
			t.Errorf("%s is %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "-1s", "d", "1d-2h", "7 days", "1w", "999999d", "100000d9999999h", "9999999999h"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q is taken as %s", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Minute: "1m", time.Hour: "1h", 90 * time.Second: "1m30s", time.Hour + time.Second: "1h0m1s", 20 * time.Second: "20s",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%s is written %s, want %s", d, got, want)
		}
	}
}

func TestParseRetention_isOffOrAboveZero(t *testing.T) {
	if got, err := ParseRetention("off"); err != nil || got.Std() != 0 || got.String() != "off" {
		t.Errorf("off is %s, %v", got, err)
	}
	if got, err := ParseRetention("7d"); err != nil || got.Std() != 168*time.Hour {
		t.Errorf("7d is %s, %v", got, err)
	}
	if _, err := ParseRetention("0s"); err == nil {
		t.Error("0s is taken: rows would go while they are marked")
	}
}

func TestParseBudget_knowsItsWords(t *testing.T) {
	for text, want := range map[string]Size{"auto": Auto, "unlimited": Unlimited, "0": 0, "10GiB": 10 << 30} {
		got, err := parseBudget(text)
		if err != nil || got != want || text != got.String() {
			t.Errorf("%s is %s, %v, want %s", text, got, err, want)
		}
	}
}

// F-68: addresses are taken apart and put together by package net alone.
func TestParseListen_takesBracketsAndRefusesBareIPv6(t *testing.T) {
	for _, text := range []string{"127.0.0.1:8080", ":0", "[::]:8080", "[::1]:0", "localhost:65535", "[fe80::1%eth0]:80"} {
		if got, err := parseListen(text); err != nil || got != text {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "8080", "::1:8080", "host:", "host:http", "host:70000", "http://host:80"} {
		if _, err := parseListen(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestSubscriber_takesEventsBySourceAndPattern(t *testing.T) {
	for _, test := range []struct {
		events string
		typ    string
		want   bool
	}{
		{"", "anything", true}, {"lesson.completed", "lesson.completed", true}, {"lesson.completed", "lesson.completed2", false},
		{"lesson.*", "lesson.completed", true}, {"lesson.*", "lesson.", true}, {"lesson.*", "lessons.x", false},
		{"*.completed", "a.b.completed", true}, {"*", "", true}, {"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-c-b", false},
		{"ab*ba", "aba", false}, {"**", "x", true}, {"a*a", "a", false},
	} {
		subscriber := Subscriber{}
		if test.events != "" {
			subscriber.Events = []string{test.events}
		}
		if got := subscriber.Takes("s", test.typ); got != test.want {
			t.Errorf("%q takes %q: %t, want %t", test.events, test.typ, got, test.want)
		}
	}
	subscriber := Subscriber{Sources: []string{"a", "b"}}
	if !subscriber.Takes("b", "x") || subscriber.Takes("c", "x") {
		t.Error("sources are not looked at")
	}
}
