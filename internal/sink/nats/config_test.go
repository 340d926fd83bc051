package nats

import (
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/sink/access"
)

func TestConfig_namesEachMistakeByItsKey(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"nothing":         {func(*Config) {}, nil},
		"no servers":      {func(c *Config) { c.Servers = nil }, []string{"servers"}},
		"a websocket":     {func(c *Config) { c.Servers = []string{"ws://a:80"} }, []string{"servers"}},
		"no port":         {func(c *Config) { c.Servers = []string{"a"} }, []string{"servers"}},
		"a user in it":    {func(c *Config) { c.Servers = []string{"nats://u:p@a:4222"} }, []string{"servers"}},
		"two in one":      {func(c *Config) { c.Servers = []string{"a:1,b:2"} }, []string{"servers"}},
		"subject":         {func(c *Config) { c.Subject = "a b" }, []string{"subject"}},
		"a wildcard":      {func(c *Config) { c.Subject = "a.>" }, []string{"subject"}},
		"empty subject":   {func(c *Config) { c.Subject = "" }, []string{"subject"}},
		"template":        {func(c *Config) { c.Subject = "{tpoic}" }, []string{"subject"}},
		"our header":      {func(c *Config) { c.Headers = map[string]config.Secret{"Walpost-Term": "1"} }, []string{"headers"}},
		"server's header": {func(c *Config) { c.Headers = map[string]config.Secret{"Nats-Rollup": "all"} }, []string{"headers"}},
		"header":          {func(c *Config) { c.Headers = map[string]config.Secret{"a": "{"} }, []string{"headers"}},
		"header name":     {func(c *Config) { c.Headers = map[string]config.Secret{"a: b": "c"} }, []string{"headers"}},
		"line break":      {func(c *Config) { c.Headers = map[string]config.Secret{"a": "b\nc"} }, []string{"headers"}},
		"fine headers":    {func(c *Config) { c.Headers = map[string]config.Secret{"org": "{header.org}", "app": "shop"} }, nil},
		"format":          {func(c *Config) { c.Format = "x" }, []string{"format"}},
		"inbox":           {func(c *Config) { c.InboxPrefix = "a.>" }, []string{"inbox_prefix"}},
		"no subjects":     {func(c *Config) { c.MaxSubjects = 0 }, []string{"max_subjects"}},
		"relative file":   {func(c *Config) { c.TLS = &access.TLS{CA: "ca.pem"} }, []string{"tls.ca"}},
		"plain TLS":       {func(c *Config) { c.TLS = &access.TLS{} }, nil},
		"no login":        {func(c *Config) { c.Auth = &Auth{} }, []string{"auth"}},
		"two logins":      {func(c *Config) { c.Auth = &Auth{Token: "t", NKey: "/n"} }, []string{"auth"}},
		"no password":     {func(c *Config) { c.Auth = &Auth{User: "u"} }, []string{"auth.user"}},
		"relative login":  {func(c *Config) { c.Auth = &Auth{Credentials: "a.creds"} }, []string{"auth.credentials"}},
	} {
		c := NewConfig()
		c.Servers = []string{"a:4222", "nats://b:4222", "tls://[::1]:4222"}
		test.change(c)
		var got []string
		c.Check(config.Subscriber{}, func(key string, _ error) { got = append(got, key) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: mistakes in %q, want %q", name, got, test.want)
		}
	}
}

func TestConfig_printsNoSecret(t *testing.T) {
	c := NewConfig()
	if err := yaml.Unmarshal([]byte("headers: {x-api-key: hidden-98765}\nauth: {user: u, password: hidden-12345}\nlongest_outage: 0s"), c); err != nil {
		t.Fatal(err)
	}
	printed, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(printed); strings.Contains(text, "hidden-") || !strings.Contains(text, "longest_outage: 0s") {
		t.Errorf("printed %s", printed)
	}
	for _, secret := range []string{"hidden-98765", "hidden-12345"} {
		if !slices.Contains(c.SecretTexts(), secret) {
			t.Errorf("%s is not masked", secret)
		}
	}
}

func TestMatches_isAsTheServerHasIt(t *testing.T) {
	for _, test := range []struct {
		filter, subject string
		want            bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "a.b", false}, {"a.b", "a", false}, {">", "a.b.c", true}, {"a.>", "a", false},
		{"a.>", "a.b", true}, {"a.>", "a.b.c", true}, {"a.*", "a.b", true}, {"a.*", "a.b.c", false}, {"*.b", "a.b", true}, {"*", "a.b", false},
		{"a.*.c", "a.b.c", true}, {"a.*.d", "a.b.c", false},
	} {
		if got := matches(test.filter, test.subject); got != test.want {
			t.Errorf("%s takes %s: %t", test.filter, test.subject, got)
		}
	}
}
