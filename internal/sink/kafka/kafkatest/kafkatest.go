// Package kafkatest starts real Kafka brokers for tests: one node in KRaft mode, or a cluster of some (cluster.go), from the
// jars that Maven has, each in a process of its own with a small heap. It is for tests only. Without Java and Maven a test fails and says how to get them.
package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Version of the broker.
const Version = "4.4.0"

// Users of the listener with SASL, and their password at the start.
const (
	User     = "walpost"
	Password = "r1ght-s3cr3t-0f-t3sts"
)

// T is what a test has, or a program in its place.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	TempDir() string
	Cleanup(run func())
	Context() context.Context
}

// patience is how long a broker may take to start.
const patience = 5 * time.Minute

// Broker is one server. It survives Stop and Start with its data.
type Broker struct {
	folder string
	jars   string
	ports  []int // plain, controller, SASL, TLS
	pair   *Pair
	extra  []string
	node   int           // from 1
	all    []*Broker     // of the cluster, with this one
	cmd    *exec.Cmd     // nil while it is down
	ended  chan struct{} // closed when the process has ended
	admin  *kadm.Client
	client *kgo.Client
}

// Start starts a broker, which ends with the test. settings are further lines of server.properties.
func Start(t T, settings ...string) *Broker {
	t.Helper()
	return StartCluster(t, 1, settings...).Brokers[0]
}

// prepare makes the folder of a broker, and finds ports for it.
func prepare(t T, node int, settings []string) *Broker {
	t.Helper()
	b := &Broker{node: node, folder: t.TempDir(), jars: Jars(t, "kafka-"+Version, Dependency{"org.apache.kafka", "kafka_2.13", Version}), pair: NewPair(t), extra: settings}
	var listeners []net.Listener
	for range 4 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, listener)
		b.ports = append(b.ports, listener.Addr().(*net.TCPAddr).Port)
	}
	for _, listener := range listeners {
		_ = listener.Close()
	}
	return b
}

// format writes the configuration and makes the storage.
func (b *Broker) format(t T) {
	t.Helper()
	if err := os.WriteFile(b.path("server.properties"), []byte(b.properties()), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "d2FscG9zdC10ZXN0cy0wMQ" // 16 bytes in base64, as the tool wants it
	if output, err := b.java("kafka.tools.StorageTool", "format", "-t", id, "-c", b.path("server.properties")).CombinedOutput(); err != nil {
		t.Fatalf("format the storage of Kafka: %v\n%s", err, output)
	}
}

// connect makes the clients of the test, and ends what is there with it.
func (b *Broker) connect(t T) {
	t.Helper()
	t.Cleanup(func() {
		b.client.Close()
		if b.cmd != nil {
			_ = b.cmd.Process.Signal(syscall.SIGCONT)
			_ = b.cmd.Process.Kill()
			<-b.ended
		}
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(b.seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	b.client, b.admin = client, kadm.NewClient(client)
}

// seeds are the addresses of all brokers.
func (b *Broker) seeds() (addresses []string) {
	for _, other := range b.all {
		addresses = append(addresses, other.Address())
	}
	return addresses
}

func (b *Broker) path(name string) string { return filepath.Join(b.folder, name) }

func (b *Broker) properties() string {
	roles, controller := "broker", ""
	var voters []string
	for _, other := range b.controllers() {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", other.node, other.ports[1]))
		if other == b {
			roles, controller = "broker,controller", fmt.Sprintf(",CONTROLLER://127.0.0.1:%d", b.ports[1])
		}
	}
	replicas, inSync := len(b.all), max(1, len(b.all)-1)
	lines := []string{
		"process.roles=" + roles, fmt.Sprintf("node.id=%d", b.node), "controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,AUTH://127.0.0.1:%d,SECURE://127.0.0.1:%d%s", b.ports[0], b.ports[2], b.ports[3], controller),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,AUTH://127.0.0.1:%d,SECURE://127.0.0.1:%d", b.ports[0], b.ports[2], b.ports[3]),
		"inter.broker.listener.name=PLAINTEXT", "controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,AUTH:SASL_PLAINTEXT,SECURE:SSL",
		"log.dirs=" + b.path("data"),
		fmt.Sprintf("offsets.topic.replication.factor=%d", replicas), fmt.Sprintf("transaction.state.log.replication.factor=%d", replicas),
		fmt.Sprintf("transaction.state.log.min.isr=%d", inSync), "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1",
		"share.coordinator.state.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1", "group.initial.rebalance.delay.ms=0",
		"broker.session.timeout.ms=1000", "broker.heartbeat.interval.ms=200", // a killed one is back at once
		"auto.create.topics.enable=true", // a client that lets topics be made would show
		"num.network.threads=2", "num.io.threads=2", "num.partitions=1", "background.threads=2",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:ANONYMOUS", "allow.everyone.if.no.acl.found=true",
		"listener.name.auth.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.auth.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_" + User + "=\"" + Password + "\";",
		"listener.name.auth.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.auth.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.auth.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";",
		"listener.name.secure.ssl.keystore.type=PEM", "listener.name.secure.ssl.keystore.location=" + b.path("server.pem"),
		"listener.name.secure.ssl.truststore.type=PEM", "listener.name.secure.ssl.truststore.location=" + b.path("ca.pem"),
		"listener.name.secure.ssl.client.auth=required",
	}
	return strings.Join(append(lines, b.extra...), "\n") + "\n"
}

func (b *Broker) java(class string, args ...string) *exec.Cmd {
	flags := []string{"-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", filepath.Join(b.jars, "*"), class}
	cmd := exec.Command("java", slices.Concat(flags, args)...) //nolint:gosec // the program and its classes are ours
	cmd.Dir = b.folder
	return cmd
}

// Up starts the broker again, with what it had, and waits until it answers.
func (b *Broker) Up(t T) {
	t.Helper()
	b.start(t)
	b.awaitAnswer(t)
}

func (b *Broker) start(t T) {
	t.Helper()
	b.pair.Write(t, b.folder)
	log, err := os.OpenFile(b.path("broker.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	b.cmd = b.java("kafka.Kafka", b.path("server.properties"))
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := b.cmd, make(chan struct{})
	b.ended = ended
	go func() { defer close(ended); _ = cmd.Wait() }()
}

func (b *Broker) awaitAnswer(t T) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-b.ended:
			b.cmd = nil
			t.Fatalf("the broker ended\n%s", b.log())
		default:
		}
		if err := b.answers(t.Context()); err == nil {
			return
		} else if time.Since(begun) > patience {
			t.Fatalf("the broker does not answer: %v\n%s", err, b.log())
		}
	}
}

// answers asks for the metadata on a connection of its own.
func (b *Broker) answers(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	topics, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err == nil && len(topics.Brokers) == 0 {
		err = errors.New("no broker has registered")
	}
	return err
}

func (b *Broker) log() string {
	text, _ := os.ReadFile(b.path("broker.log"))
	return string(text[max(0, len(text)-4000):])
}

// Down kills the broker.
func (b *Broker) Down(t T) {
	t.Helper()
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Signal(syscall.SIGCONT)
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-b.ended
	b.cmd = nil
}

// Freeze stops the process, which keeps its connections; thaw lets it go on.
func (b *Broker) Freeze(t T) (thaw func()) {
	t.Helper()
	process := b.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

// Address is that of the listener that asks for nothing, Auth of the one with SASL, Secure of the one with TLS.
func (b *Broker) Address() string { return b.at(0) }

// Auth is the address of the listener that asks for SASL.
func (b *Broker) Auth() string { return b.at(2) }

// Secure is the address of the listener with TLS, which asks for a certificate.
func (b *Broker) Secure() string { return b.at(3) }

func (b *Broker) at(port int) string { return fmt.Sprintf("127.0.0.1:%d", b.ports[port]) }

// Pair is what a client of Secure needs: paths of the authority, the certificate and its key.
func (b *Broker) Pair() (ca, cert, key string) {
	return b.path("ca.pem"), b.path("client.pem"), b.path("client-key.pem")
}

// Admin is a client that may everything.
func (b *Broker) Admin() *kadm.Client { return b.admin }

// Topic makes a topic. settings are pairs of its configuration.
func (b *Broker) Topic(t T, name string, partitions int, settings ...string) {
	t.Helper()
	configs := map[string]*string{}
	for i := 0; i < len(settings); i += 2 {
		configs[settings[i]] = &settings[i+1]
	}
	made, err := b.admin.CreateTopic(t.Context(), int32(partitions), int16(len(b.all)), configs, name)
	if err != nil || made.Err != nil {
		t.Fatalf("make topic %s: %v %v", name, err, made.Err)
	}
	b.awaitTopic(t, name, partitions)
}

func (b *Broker) awaitTopic(t T, name string, partitions int) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) { // a broker learns of it after the controller
		found, err := b.admin.DescribeTopicConfigs(t.Context(), name)
		listed, of := b.admin.ListTopics(t.Context(), name)
		if err == nil && of == nil && found[0].Err == nil && listed.Error() == nil && len(listed[name].Partitions) == partitions {
			return
		}
		if time.Since(begun) > patience {
			t.Fatalf("topic %s is not there: %v %v", name, err, of)
		}
	}
}

// settled waits until what is committed can be read: the brokers answer a commit before they have written that into each
// partition. A transaction that stays open is waited for at most for settleFor.
func (b *Broker) settled(ctx context.Context, topic string) (kadm.ListedOffsets, error) {
	const settleFor = 5 * time.Second
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		ends, err := b.admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		committed, err := b.admin.ListCommittedOffsets(ctx, topic)
		if err == nil {
			err = committed.Error()
		}
		if err != nil {
			return nil, err
		}
		open := false
		ends.Each(func(o kadm.ListedOffset) {
			c, _ := committed.Lookup(topic, o.Partition)
			open = open || c.Offset < o.Offset
		})
		if !open || time.Since(begun) > settleFor {
			return committed, nil
		}
	}
}

// Records are what a consumer that reads only what is committed gets of a topic, partition by partition, in order.
func (b *Broker) Records(t T, topic string) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends, err := b.settled(ctx, topic)
	if err != nil {
		t.Fatalf("read topic %s: %v", topic, err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	if len(left) == 0 {
		return nil
	}
	from := map[string]map[int32]kgo.Offset{topic: {}}
	for partition := range left {
		from[topic][partition] = kgo.NewOffset().AtStart()
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(b.seeds()...), kgo.ConsumePartitions(from), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("read topic %s: %v, partitions left %v", topic, err, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
			if end, reading := left[r.Partition]; reading && r.Offset >= end-1 {
				delete(left, r.Partition)
			}
		})
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return int(a.Partition) - int(b.Partition) })
	return records
}
