package kafka

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/route"
	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/access"
)

// Formats of a record.
const (
	// Payload is the event's payload, byte for byte, with walpost's own headers.
	Payload = "payload"
	// CloudEvents is the payload with the event's attributes in ce_ headers (binary mode).
	CloudEvents = "cloudevents"
	// CloudEventsStructured is a JSON object with attributes and payload.
	CloudEventsStructured = "cloudevents-structured"
	// Debezium is the record that Debezium's outbox event router makes, see DebeziumOptions.
	Debezium = "debezium"
)

// Config is what walpost.yaml says of Kafka apart from what every subscriber has.
type Config struct {
	// Brokers are some of the cluster, host:port; the others are found.
	Brokers []string `yaml:"brokers,omitempty"`
	// Topic is a template.
	Topic string `yaml:"topic,omitempty"`
	// Headers are templates, sent with each record. One can hold a key of the receivers.
	Headers map[string]config.Secret `yaml:"headers,omitempty"`
	Format  string                   `yaml:"format,omitempty"`
	// Debezium says how bytes are made in the format of that name; nil is as the zero value.
	Debezium *DebeziumOptions `yaml:"debezium,omitempty"`
	// Partitioner is one of partitioners.
	Partitioner string `yaml:"partitioner,omitempty"`
	// Compression is one of codecs.
	Compression string `yaml:"compression,omitempty"`
	// ExactlyOnce sends in transactions under an id of its own, so that the brokers refuse what a relay sends that leads
	// no more.
	ExactlyOnce bool         `yaml:"exactly_once,omitempty"`
	TLS         *access.TLS  `yaml:"tls,omitempty"`
	SASL        *access.SASL `yaml:"sasl,omitempty"`
}

// NewConfig returns the defaults.
func NewConfig() *Config {
	return &Config{Topic: "{topic}", Format: Payload, Partitioner: "murmur2", Compression: "none"}
}

// Defaults changes those of every subscriber: a leader of a partition is elected within ten seconds, which is no reason
// to record a window as debt.
func Defaults(s *config.Subscriber) { s.Standstill = config.Duration(10 * time.Second) }

// maxHeaders bounds what the configuration adds to each record.
const maxHeaders = 64

// Check implements config.Options.
func (c *Config) Check(_ config.Subscriber, fail func(string, error)) {
	if len(c.Brokers) == 0 {
		fail("brokers", errors.New("is missing: some brokers of the cluster, as in [kafka-1.example:9092]"))
	}
	for _, broker := range c.Brokers {
		host, port, err := net.SplitHostPort(broker)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(broker, "/@, ") {
			fail("brokers", fmt.Errorf("%.100q is not host:port", broker))
		}
	}
	if _, err := route.Compile(c.Topic, route.Kafka); err != nil {
		fail("topic", err)
	}
	if len(c.Headers) > maxHeaders {
		fail("headers", fmt.Errorf("there are %d, at most %d are sent", len(c.Headers), maxHeaders))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if name == "" || isOurs(name) || c.Format == Debezium && name == debeziumID {
			fail("headers", fmt.Errorf("%q is set by walpost itself", name))
		}
		if _, err := c.header(name); err != nil {
			fail("headers", fmt.Errorf("%s: %w", name, err))
		}
	}
	oneOf := func(key, value string, known []string) {
		if !slices.Contains(known, value) {
			fail(key, fmt.Errorf("%q is none of %s", value, strings.Join(known, ", ")))
		}
	}
	oneOf("format", c.Format, []string{Payload, CloudEvents, CloudEventsStructured, Debezium})
	c.checkDebezium(fail)
	oneOf("partitioner", c.Partitioner, slices.Sorted(maps.Keys(partitioners)))
	oneOf("compression", c.Compression, slices.Sorted(maps.Keys(codecs)))
	c.TLS.Check(fail)
	c.SASL.Check(fail)
}

// header compiles the template of a header. A value without text is not sent.
func (c *Config) header(name string) (*route.Template, error) {
	text := safefile.AtStart(c.Headers[name].Live())
	template, err := route.Compile(text, route.Rule{MayBeEmpty: true})
	return template, mask.New(text).Error(err)
}

// SecretTexts implements config.Options.
func (c *Config) SecretTexts() []string {
	texts := c.SASL.SecretTexts()
	for name := range c.Headers {
		if template, err := c.header(name); err == nil {
			if text, fixed := template.Fixed(); fixed {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// isOurs tells which headers the configuration must not set.
func isOurs(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"walpost-", "webhook-", "ce_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "content-type" || name == "x-correlation-id" || name == "traceparent"
}
