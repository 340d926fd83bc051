package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/backendstart/walpost/internal/sink/access"
)

const (
	// buffered is above every in_flight, which is what bounds a client: Produce never waits.
	buffered = 1 << 24
	// largestAnswer is what is read of a broker's answer: to a thousand topics with a hundred partitions each.
	largestAnswer = 16 << 20
	// dialFor is how long a connection may take.
	dialFor = 3 * time.Second
)

// newClient makes a client of the brokers. It connects when it is used.
//
// RecordRetries and RecordDeliveryTimeout are left unset, and AllowIdempotentProduceCancellation and
// MaxProduceRequestsInflightPerBroker too: a record that is on its way has to end with the brokers' answer, or it would come
// twice and out of order. The end of a record's context gives it up only if it is not on its way (franz-go 1.20.7 and later,
// twmb/franz-go#1217), with all that wait for the same partition. AllowAutoTopicCreation is left unset: a misspelt topic is
// made by no one.
func (o Options) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...),
		kgo.ClientID("walpost"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(partitioners[o.Partitioner]),
		kgo.ProducerBatchCompression(codecs[o.Compression]),
		kgo.MaxBufferedRecords(buffered),
		kgo.ProducerLinger(0),                      // a lane hands over what has gathered: to wait for more would only delay it
		kgo.MetadataMinAge(250 * time.Millisecond), // a topic that is made, a leader that is elected, is found soon
		kgo.Dialer(o.dial),
		kgo.BrokerMaxReadBytes(largestAnswer),
		kgo.FetchMaxBytes(largestAnswer / 2), // nothing is fetched, but the client wants it to fit into an answer
	}
	if o.SASL != nil {
		opts = append(opts, kgo.SASL(o.login()))
	}
	return kgo.NewClient(append(opts, more...)...)
}

// dial connects to a broker, with TLS where that is wanted. The certificates are read at each connection.
func (o Options) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialFor)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || o.TLS == nil {
		return conn, err
	}
	host, _, _ := net.SplitHostPort(address)
	config, err := o.TLS.Config(host)
	if err == nil {
		secure := tls.Client(conn, config)
		if err = secure.HandshakeContext(ctx); err == nil {
			return secure, nil
		}
	}
	_ = conn.Close()
	return nil, fmt.Errorf("TLS to %s: %w", address, err)
}

// login reads user and password at each connection.
func (o Options) login() sasl.Mechanism {
	ofScram := func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: o.SASL.User.Reveal(), Pass: o.SASL.Password.Reveal()}, nil
	}
	switch o.SASL.Mechanism {
	case access.Scram256:
		return scram.Sha256(ofScram)
	case access.Scram512:
		return scram.Sha512(ofScram)
	case access.OAuthBearer:
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) { return oauth.Auth{Token: o.SASL.Token.Reveal()}, nil })
	}
	return plain.Plain(func(context.Context) (plain.Auth, error) {
		return plain.Auth{User: o.SASL.User.Reveal(), Pass: o.SASL.Password.Reveal()}, nil
	})
}
