// Package debeziumtest runs a real Debezium for tests: its connector for Postgres, embedded in a Java process, its outbox event
// router and the converters of Kafka Connect. It is for tests only. Without a JDK and Maven a test fails and says how to get
// them.
package debeziumtest

import (
	"bufio"
	_ "embed"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
)

// Version of Debezium.
const Version = "3.6.1.Final"

//go:embed Records.java
var source []byte

// Way is how records are made of rows: options of the router, and of the converters by their names in a worker, with
// "converter" for the class.
type Way struct{ Router, Key, Value map[string]string }

// Record is what a worker would send to Kafka.
type Record struct {
	Topic      string
	Key, Value []byte // nil is null
	Headers    []Header
	// Fails says that Debezium ends at this record: its value cannot be converted.
	Fails bool
}

// Header is one of a record.
type Header struct {
	Name  string
	Value []byte // nil is null
}

// Engine is a running Debezium.
type Engine struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu      sync.Mutex
	records map[string][]Record // by way; guarded by mu
	log     strings.Builder     // guarded by mu
}

// Start starts one on the tables of a database, from what commits from then on or from where its offsets say. Its slot and
// publication have a name of their own; offsets is a file, which is made. It ends with the test, or with Stop.
func Start(t kafkatest.T, dsn, name, offsets string, tables []string, ways map[string]Way) *Engine {
	t.Helper()
	jars := kafkatest.Jars(t, "debezium-"+Version, kafkatest.Dependency{Group: "io.debezium", Artifact: "debezium-embedded", Version: Version},
		kafkatest.Dependency{Group: "io.debezium", Artifact: "debezium-connector-postgres", Version: Version},
		kafkatest.Dependency{Group: "io.debezium", Artifact: "debezium-api", Version: Version})
	if _, err := exec.LookPath("javac"); err != nil {
		t.Fatal("Debezium is run from source, which needs a JDK of 17 or newer: apt-get install default-jdk-headless")
	}
	database, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	properties := map[string]string{
		"engine.name": name, "engine.connector.class": "io.debezium.connector.postgresql.PostgresConnector",
		"engine.offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore", "engine.offset.storage.file.filename": offsets,
		"engine.offset.flush.interval.ms": "0", "engine.topic.prefix": name, "engine.plugin.name": "pgoutput",
		"engine.database.hostname": database.Host, "engine.database.port": fmt.Sprint(database.Port), "engine.database.user": database.User,
		"engine.database.password": database.Password, "engine.database.dbname": database.Database,
		"engine.slot.name": name, "engine.publication.name": name, "engine.publication.autocreate.mode": "filtered",
		"engine.table.include.list": strings.Join(tables, ","), "engine.snapshot.mode": "no_data",
	}
	for way, of := range ways {
		for kind, options := range map[string]map[string]string{"router": of.Router, "key": of.Key, "value": of.Value} {
			for option, value := range options {
				properties[way+"."+kind+"."+option] = value
			}
		}
	}
	var lines strings.Builder
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&lines, "%s=%s\n", key, strings.ReplaceAll(properties[key], `\`, `\\`))
	}
	folder := t.TempDir()
	for file, text := range map[string][]byte{"Records.java": source, "engine.properties": []byte(lines.String())} {
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := &Engine{ended: make(chan struct{}), records: map[string][]Record{}}
	e.cmd = exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(jars, "*"), "Records.java", "engine.properties") //nolint:gosec // the program is ours
	e.cmd.Dir = folder
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if e.stdin, err = e.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	e.cmd.Stderr = e
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go e.read(stdout)
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		<-e.ended
	})
	return e
}

// Write takes the log.
func (e *Engine) Write(text []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.Write(text)
}

// Log is what it has said so far.
func (e *Engine) Log() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.String()
}

// Records are those that were made in one of the ways so far, in their order.
func (e *Engine) Records(way string) []Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.records[way])
}

// HasEnded tells that the process has ended.
func (e *Engine) HasEnded() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// Stop ends it clean: it keeps its offsets and confirms them.
func (e *Engine) Stop(t kafkatest.T) {
	t.Helper()
	_ = e.stdin.Close()
	select {
	case <-e.ended:
	case <-time.After(time.Minute):
		t.Fatalf("Debezium does not stop\n%s", e.Log())
	}
}

func (e *Engine) read(lines io.Reader) {
	defer close(e.ended)
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		fields := strings.Split(scanner.Text(), " ")
		r := Record{Topic: fields[1], Key: decode(fields[2]), Value: decode(fields[3]), Fails: fields[3] == "!"}
		for i := 4; i+1 < len(fields); i += 2 {
			r.Headers = append(r.Headers, Header{fields[i], decode(fields[i+1])})
		}
		e.mu.Lock()
		e.records[fields[0]] = append(e.records[fields[0]], r)
		e.mu.Unlock()
	}
	_ = e.cmd.Wait()
}

// decode reads base64 behind "="; "-" is null.
func decode(text string) []byte {
	encoded, found := strings.CutPrefix(text, "=")
	if !found {
		return nil
	}
	decoded, err := base64.StdEncoding.AppendDecode([]byte{}, []byte(encoded))
	if err != nil {
		panic(fmt.Sprintf("Records.java has written %q", text)) // it is ours
	}
	return decoded
}
