package config

import (
	"strings"
	"testing"
)

func TestAsk_findsTheRelayWhereItListens(t *testing.T) {
	for ask, want := range map[Ask]string{
		{OpsListen: "127.0.0.1:8081"}:     "http://127.0.0.1:8081",
		{OpsListen: ":9000"}:              "http://127.0.0.1:9000",
		{OpsListen: "0.0.0.0:9000"}:       "http://127.0.0.1:9000",
		{OpsListen: "[::]:9000"}:          "http://127.0.0.1:9000",
		{OpsListen: "[::1]:9000"}:         "http://[::1]:9000",
		{OpsListen: "unix:/run/ops.sock"}: "unix:/run/ops.sock",
		{OpsListen: "127.0.0.1:8081", RelayURL: RelayURL{"unix:/run/ops.sock"}}: "unix:/run/ops.sock",
		{OpsListen: "relay-1:9000"}: "http://relay-1:9000",
		{OpsListen: "127.0.0.1:0", RelayURL: RelayURL{"https://relay.example/ops/"}}: "https://relay.example/ops",
	} {
		if got, err := ask.URL(); err != nil || got != want {
			t.Errorf("%+v: got %s, %v, want %s", ask, got, err, want)
		}
	}
	if got, err := (Ask{OpsListen: "127.0.0.1:0"}).URL(); err == nil {
		t.Errorf("a free port is at %s", got)
	}
}

func TestParseHTTPURL_refusesWhatCannotBeAsked(t *testing.T) {
	for _, text := range []string{"relay:8081", "127.0.0.1:8081", "ftp://relay", "http://", "http://relay?x=1", "http://relay#x", "unix:ops.sock", "unix:", "unix:/run/../ops.sock", "unix:/" + strings.Repeat("x", 90)} {
		if got, err := parseHTTPURL(text); err == nil {
			t.Errorf("%q is taken as %q", text, got)
		}
	}
}
