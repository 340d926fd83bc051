package kafka

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
		"nothing":      {func(*Config) {}, nil},
		"no brokers":   {func(c *Config) { c.Brokers = nil }, []string{"brokers"}},
		"a URL":        {func(c *Config) { c.Brokers = []string{"kafka://a:9092"} }, []string{"brokers"}},
		"no port":      {func(c *Config) { c.Brokers = []string{"a"} }, []string{"brokers"}},
		"two in one":   {func(c *Config) { c.Brokers = []string{"a:1,b:2"} }, []string{"brokers"}},
		"topic":        {func(c *Config) { c.Topic = "a b" }, []string{"topic"}},
		"empty topic":  {func(c *Config) { c.Topic = "" }, []string{"topic"}},
		"template":     {func(c *Config) { c.Topic = "{tpoic}" }, []string{"topic"}},
		"our header":   {func(c *Config) { c.Headers = map[string]config.Secret{"Walpost-Term": "1"} }, []string{"headers"}},
		"header":       {func(c *Config) { c.Headers = map[string]config.Secret{"a": "{"} }, []string{"headers"}},
		"fine headers": {func(c *Config) { c.Headers = map[string]config.Secret{"org": "{header.org}", "app": "shop"} }, nil},
		"choices":      {func(c *Config) { c.Format, c.Partitioner, c.Compression = "x", "x", "x" }, []string{"format", "partitioner", "compression"}},
		"Debezium": {func(c *Config) {
			c.Format, c.Debezium = Debezium, &DebeziumOptions{ValueConverter: JSONConverter, ExpandJSONPayload: true}
		}, nil},
		"its id": {func(c *Config) { c.Format, c.Headers = Debezium, map[string]config.Secret{"id": "{key}"} }, []string{"headers"}},
		"its options": {func(c *Config) {
			c.Debezium = &DebeziumOptions{KeyConverter: "avro", ExpandJSONPayload: true}
		}, []string{"debezium", "debezium.key_converter", "debezium.expand_json_payload"}},
		"relative file": {func(c *Config) { c.TLS = &access.TLS{CA: "ca.pem"} }, []string{"tls.ca"}},
		"half a pair":   {func(c *Config) { c.TLS = &access.TLS{Cert: "/c"} }, []string{"tls.cert"}},
		"plain TLS":     {func(c *Config) { c.TLS = &access.TLS{} }, nil},
		"mechanism":     {func(c *Config) { c.SASL = &access.SASL{Mechanism: "PLAIN"} }, []string{"sasl.mechanism"}},
		"no password":   {func(c *Config) { c.SASL = &access.SASL{Mechanism: "plain", User: "u"} }, []string{"sasl.user"}},
		"a token too": {func(c *Config) {
			c.SASL = &access.SASL{Mechanism: "scram-sha-256", User: "u", Password: "p", Token: "t"}
		}, []string{"sasl.token"}},
		"a user too":      {func(c *Config) { c.SASL = &access.SASL{Mechanism: "oauthbearer", User: "u", Token: "t"} }, []string{"sasl.user"}},
		"a token missing": {func(c *Config) { c.SASL = &access.SASL{Mechanism: "oauthbearer"} }, []string{"sasl.token"}},
	} {
		c := NewConfig()
		c.Brokers = []string{"a:9092", "[::1]:9092"}
		test.change(c)
		var got []string
		c.Check(config.Subscriber{}, func(key string, _ error) { got = append(got, key) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: mistakes in %q, want %q", name, got, test.want)
		}
	}
}

// S-348. A header can hold a key of the receivers: configuration.md says that values of headers are masked.
func TestConfig_printsNoValueOfAHeader(t *testing.T) {
	c := NewConfig()
	if err := yaml.Unmarshal([]byte("headers: {x-api-key: hidden-98765, org: '{header.org}'}"), c); err != nil {
		t.Fatal(err)
	}
	printed, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(printed), "hidden-98765") || !strings.Contains(string(printed), "x-api-key: "+`"`+config.Mask) && !strings.Contains(string(printed), "x-api-key: '"+config.Mask) {
		t.Errorf("printed %s", printed)
	}
	if !slices.Contains(c.SecretTexts(), "hidden-98765") || slices.Contains(c.SecretTexts(), "{header.org}") {
		t.Errorf("what is masked: %q", c.SecretTexts())
	}
}
