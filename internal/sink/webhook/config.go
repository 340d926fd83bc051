package webhook

import (
	"net/url"
	"strings"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/mask"
)

// Config is what walpost.yaml says of a webhook apart from what every subscriber has.
type Config struct {
	URL string `yaml:"url,omitempty"`
	// Secret holds several while a key is being rotated; all of them sign.
	Secret       config.Secrets           `yaml:"secret,omitempty"`
	SignHeaders  bool                     `yaml:"sign_headers,omitempty"`
	Headers      map[string]config.Secret `yaml:"headers,omitempty"`
	AllowPrivate bool                     `yaml:"allow_private,omitempty"`
	Format       string                   `yaml:"format,omitempty"`
}

// Of makes the options of a subscriber.
func (c *Config) Of(s config.Subscriber) Options {
	o := Options{
		Name: s.Name, URL: c.URL, Headers: make(map[string]string, len(c.Headers)), AllowPrivate: c.AllowPrivate,
		SignHeaders: c.SignHeaders, Format: c.Format, Batch: int(s.Batch), Concurrency: int(s.Concurrency), Timeout: s.Timeout.Std(),
	}
	for _, secret := range c.Secret {
		o.Secrets = append(o.Secrets, secret.Live())
	}
	for name, value := range c.Headers {
		o.Headers[name] = value.Live()
	}
	return o
}

// Check implements config.Options.
func (c *Config) Check(s config.Subscriber, fail func(string, error)) {
	for _, problem := range c.Of(s).Problems() {
		fail(problem.Key, problem.Err)
	}
}

// SecretTexts implements config.Options.
func (c *Config) SecretTexts() []string {
	var secrets []string
	for _, secret := range c.Secret {
		secrets = append(secrets, strings.TrimPrefix(secret.Reveal(), "whsec_"))
	}
	for _, value := range c.Headers {
		secrets = append(secrets, mask.InHeader(value.Reveal())...)
	}
	return append(secrets, c.tokensOfURL()...)
}

func (c *Config) tokensOfURL() []string {
	if address, err := url.Parse(c.URL); err == nil {
		return mask.InURL(address)
	}
	return nil
}

// MarshalYAML masks an address in which a token can stand.
func (c *Config) MarshalYAML() (any, error) {
	type plain Config
	written := plain(*c)
	if len(c.tokensOfURL()) > 0 {
		written.URL = config.Mask
	}
	return written, nil
}
