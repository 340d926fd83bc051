package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/safefile"
)

// S-133: the next mail goes where the file says then, and one that cannot be read is tried again.
func TestMailer_readsItsURLAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "smtp")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first = "smtp://user:before@127.0.0.1:1?tls=none"
	write(first)
	m, err := newMailer(config.Secret(safefile.Live(file, first)))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"smtp://user:after@127.0.0.1:2?tls=none\n": "127.0.0.1:2",
		"no url": "smtp_url: SMTP URL: begins with neither",
	} {
		write(text)
		if err := m.Notify(t.Context(), lessons.Message{UserID: 1, EventID: "e"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q in the file: %v, want %q", text, err, want)
		}
	}
	if _, err := newMailer("no url"); err == nil {
		t.Error("a wrong URL is no error at the start")
	}
}
