package app

import (
	"context"
	"fmt"
	"sync"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/lessons"
)

// mailer is a notifier whose URL may stand in a file that changes, because a password is rotated.
type mailer struct {
	url config.Secret

	mu       sync.Mutex
	text     string                // the URL that notifier is made of; guarded by mu
	notifier *lessons.SMTPNotifier // guarded by mu
}

// newMailer returns an error if the URL cannot be read now.
func newMailer(url config.Secret) (*mailer, error) {
	m := &mailer{url: url}
	_, err := m.current()
	return m, err
}

// current makes another notifier when the URL has changed.
func (m *mailer) current() (*lessons.SMTPNotifier, error) {
	text := m.url.Reveal()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notifier == nil || text != m.text {
		notifier, err := lessons.NewSMTPNotifier(text)
		if err != nil {
			return nil, err
		}
		m.text, m.notifier = text, notifier
	}
	return m.notifier, nil
}

// Notify implements lessons.Notifier. An URL that cannot be read is no fault of the message: it is tried again.
func (m *mailer) Notify(ctx context.Context, message lessons.Message) error {
	notifier, err := m.current()
	if err != nil {
		return fmt.Errorf("smtp_url: %w", err)
	}
	return notifier.Notify(ctx, message)
}
