//go:build outside

package kafka_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/sink/kafka/debeziumtest"
	"github.com/backendstart/walpost/internal/sink/kafka/kafkatest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Converters of Kafka Connect.
const (
	stringConverter = "org.apache.kafka.connect.storage.StringConverter"
	jsonConverter   = "org.apache.kafka.connect.json.JsonConverter"
)

// placement are the further columns of the tables below: name of the header, then the column.
var placement = map[string]string{
	"eventType": "type", "org": "org", "note": "note", "n": "n", "kind": "kind", "doc": "doc", "ref": "ref",
	"ok": "ok", "at": "at", "day": "day", "local": "local", "amount": "amount", "tags": "tags", "raw": "raw", "ratio": "ratio",
}

// differentHeaders are those whose text Debezium changes, with what it makes of it: docs/from-debezium.md lists the types.
var differentHeaders = map[string]string{
	"ok": "true", "at": "2026-01-02T01:04:05.123456Z", "day": "20455", "local": "1767323045500000", "tags": `["a","b c",null]`, "raw": "AP8=",
}

// debeziumRouter is the configuration of the router, with topics of a way's own.
func debeziumRouter(way string, more map[string]string) map[string]string {
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(placement)) {
		fields = append(fields, placement[name]+":header:"+name)
	}
	options := map[string]string{
		"route.topic.replacement":           way + ".event.${routedByValue}",
		"table.fields.additional.placement": strings.Join(fields, ","),
	}
	maps.Copy(options, more)
	return options
}

// debeziumWays are the ways in which Debezium can make records, with what walpost.yaml has for each.
var debeziumWays = []struct {
	name, yaml string
	debezium   debeziumtest.Way
}{
	{"string", "", debeziumtest.Way{
		Router: debeziumRouter("string", nil),
		Key:    map[string]string{"converter": stringConverter}, Value: map[string]string{"converter": stringConverter},
	}},
	{"blank", "debezium: {tombstone_on_empty_payload: true}", debeziumtest.Way{
		Router: debeziumRouter("blank", map[string]string{"route.tombstone.on.empty.payload": "true"}),
		Key:    map[string]string{"converter": stringConverter}, Value: map[string]string{"converter": stringConverter},
	}},
	{"json", "debezium: {key_converter: json, value_converter: json}", debeziumtest.Way{
		Router: debeziumRouter("json", nil),
		Key:    map[string]string{"converter": jsonConverter, "converter.schemas.enable": "false"},
		Value:  map[string]string{"converter": jsonConverter, "converter.schemas.enable": "false"},
	}},
	{"expanded", "debezium: {value_converter: json, expand_json_payload: true, tombstone_on_empty_payload: true}", debeziumtest.Way{
		Router: debeziumRouter("expanded", map[string]string{"table.expand.json.payload": "true", "route.tombstone.on.empty.payload": "true"}),
		Key:    map[string]string{"converter": stringConverter},
		Value:  map[string]string{"converter": jsonConverter, "converter.schemas.enable": "false"},
	}},
}

// debeziumPayloads are the payloads of a table, by the type of its column; "" is SQL NULL.
var debeziumPayloads = map[string][]string{
	"jsonb": {
		`'{"b": 1, "a": [1, 2], "c": {"d": "x"}}'`, `'{"text": "é 日本 😀 \" \\ / <&> \u2028 \u0001 \n"}'`,
		`'{"id": 9007199254740993, "neg": -9223372036854775808}'`, `'{"n": 12345678901234567890.123456789}'`, `'{"e": 1e30}'`,
		`'{"nothing": null, "some": 1}'`, `'{"empty": [], "some": 1}'`, `'{"mixed": [1, "a"]}'`, `'{}'`,
		`'[1, 2]'`, `'[{"a": 1}]'`, `'"text"'`, `'12'`, `'null'`, `NULL`,
	},
	"text":  {`'plain'`, `'{"a": 1,  "b" : "x"}'`, `'{"torn": '`, `''`, `'  '`, `E'é 日本 😀 " \\ / <&> \u2028 \u0001 \b\f\n\r\t \x7f'`, `NULL`},
	"bytea": {`'\x00ff10'`, `'\x'`, `'\x20'`, `NULL`},
}

// How Debezium's expansion of JSON differs from the payload: it reads it and writes it again. docs/from-debezium.md names each.
const (
	spaces = "spaces" // between tokens, which jsonb has and Debezium leaves out
	lossy  = "lossy"  // something of it is gone
	fails  = "fails"  // its task ends there
)

var expandedDifferently = map[string]string{
	`'{"b": 1, "a": [1, 2], "c": {"d": "x"}}'`:                spaces,
	`'{"text": "é 日本 😀 \" \\ / <&> \u2028 \u0001 \n"}'`:       spaces,
	`'{"id": 9007199254740993, "neg": -9223372036854775808}'`: spaces,
	`'{"n": 12345678901234567890.123456789}'`:                 lossy, // a double
	`'{"e": 1e30}'`:                  fails, // an integer over 64 bits
	`'{"nothing": null, "some": 1}'`: lossy, // without nothing
	`'{"empty": [], "some": 1}'`:     lossy, // without empty
	`'{"mixed": [1, "a"]}'`:          lossy, // a string
	`'[1, 2]'`:                       fails,
	`'[{"a": 1}]'`:                   fails,
	`'{"a": 1,  "b" : "x"}'`:         spaces,
}

// F-42, F-49, F-56: a real Debezium reads the same WAL with a slot of its own. Record by record, what it would send is what walpost has sent, but
// for the differences that docs/from-debezium.md names.
func TestOutside_KafkaRecordsAreThoseOfDebezium(t *testing.T) {
	b := kafkatest.Start(t)
	db := testdb.New(t)
	db.Exec(`CREATE TYPE kind AS ENUM ('small', 'LARGE size')`)
	var tables []string
	var sources, subscribers strings.Builder
	for _, payload := range slices.Sorted(maps.Keys(debeziumPayloads)) {
		db.Exec(`CREATE TABLE outbox_` + payload + ` (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
			type varchar(255) NOT NULL, payload ` + payload + `, org text, note text, n bigint, kind kind, doc jsonb, ref uuid, ok boolean, at timestamptz, day date,
			local timestamp, amount numeric(20, 6), tags text[], raw bytea, ratio float8)`)
		tables = append(tables, "public.outbox_"+payload)
		var columns []string
		for _, column := range slices.Sorted(maps.Values(placement)) {
			if column != "type" {
				columns = append(columns, column+": "+column)
			}
		}
		fmt.Fprintf(&sources, "  - {name: %s, table: public.outbox_%s, rows: deleted, headers: {%s}}\n", payload, payload, strings.Join(columns, ", "))
		for _, way := range debeziumWays {
			b.Topic(t, way.name+".event.of-"+payload, 1)
			var headers []string
			for name, column := range placement {
				template := "{header." + column + "}"
				if column == "type" {
					template = "{type}"
				}
				headers = append(headers, fmt.Sprintf("%s: %q", name, template))
			}
			fmt.Fprintf(&subscribers, "  - {name: %s-%s, kind: kafka, brokers: [%q], sources: [%s], format: debezium, topic: \"%s.event.{aggregate_type}\", headers: {%s}, %s}\n",
				way.name, payload, b.Address(), payload, way.name, strings.Join(headers, ", "), way.yaml)
		}
	}
	config := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(config, []byte("sources:\n"+sources.String()+"subscribers:\n"+strings.ReplaceAll(subscribers.String(), ", }", "}")), 0o600); err != nil {
		t.Fatal(err)
	}
	ways := map[string]debeziumtest.Way{}
	for _, way := range debeziumWays {
		ways[way.name] = way.debezium
	}
	const name = "debezium_compared"
	engine := debeziumtest.Start(t, db.DSN, name, filepath.Join(t.TempDir(), "offsets"), tables, ways)
	relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+config, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
	relay.AwaitStreaming()
	testprogram.Within(t, time.Minute, "Debezium to read its slot", func() bool {
		if engine.HasEnded() {
			t.Fatalf("Debezium has ended\n%s", engine.Log())
		}
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, name) == 1
	})
	rows := 0
	for payload, values := range debeziumPayloads {
		for i, value := range values {
			rows++
			table := "outbox_" + payload
			insert := fmt.Sprintf(`INSERT INTO %s (aggregatetype, aggregateid, type, payload, org, note, n, kind, doc, ref, ok, at, day, local, amount, tags, raw, ratio) VALUES (
				'of-%s', 'key %d é', 'made', %s, 'org "1"', %s, %d, 'LARGE size', '{"a": [1, null]}', gen_random_uuid(), true, '2026-01-02 03:04:05.123456+02', '2026-01-02',
				'2026-01-02 03:04:05.5', 12.340000, '{a,"b c",NULL}', '\x00ff', 0.1)`, table, payload, i%5, value, []string{"''", "NULL", "'x'"}[i%3], i)
			if i%2 == 0 { // as a service that keeps no row does it
				insert = fmt.Sprintf(`WITH i AS (%s) SELECT`, insert)
				db.Exec(fmt.Sprintf(`DO $do$ BEGIN %s; DELETE FROM %s; END $do$`, strings.TrimSuffix(strings.TrimPrefix(insert, "WITH i AS ("), ") SELECT"), table))
			} else {
				db.Exec(insert)
			}
		}
	}
	for _, way := range debeziumWays {
		t.Run(way.name, func(t *testing.T) {
			testprogram.Within(t, time.Minute, "all records of Debezium", func() bool { return len(engine.Records(way.name)) == rows || engine.HasEnded() })
			for payload, values := range debeziumPayloads {
				topic := way.name + ".event.of-" + payload
				var want []debeziumtest.Record
				for _, r := range engine.Records(way.name) {
					if r.Topic == topic {
						want = append(want, r)
					}
				}
				if len(want) != len(values) {
					t.Fatalf("Debezium has made %d records for %s, want %d\n%s", len(want), topic, len(values), engine.Log())
				}
				testprogram.Within(t, time.Minute, "all records in "+topic, func() bool { return len(b.Records(t, topic)) == len(values) })
				var got []debeziumtest.Record
				for _, r := range b.Records(t, topic) {
					got = append(got, fromKafka(r))
				}
				compareWithDebezium(t, way.name, payload, got, want)
			}
		})
	}
	t.Run("walpost takes its slot over", func(t *testing.T) { takesOver(t, db, b, engine, name) })
	if t.Failed() {
		t.Log(engine.Log())
	}
}

// takesOver goes the two ways of docs/from-debezium.md at once while rows are written: the relay that runs next to Debezium goes
// on when Debezium stops; another one takes Debezium's own slot, from where Debezium has confirmed.
func takesOver(t *testing.T, db *testdb.DB, b *kafkatest.Broker, engine *debeziumtest.Engine, slot string) {
	const shadow, router = "string.event.of-text", "string"
	seen := map[string]bool{} // before
	for _, r := range b.Records(t, shadow) {
		seen[string(headerOf(fromKafka(r), "id"))] = true
	}
	var written []string
	write := func(n int) {
		for range n {
			written = append(written, db.Text(`WITH written AS (INSERT INTO outbox_text (aggregatetype, aggregateid, type, payload)
				VALUES ('of-text', 'k', 'made', 'x') RETURNING id) SELECT id::text FROM written`))
			if len(written)%2 == 0 {
				db.Exec(`DELETE FROM outbox_text`)
			}
		}
	}
	debezium := func() (ids []string) {
		for _, r := range engine.Records(router) {
			if id := string(headerOf(r, "id")); strings.HasSuffix(r.Topic, "of-text") && !seen[id] {
				ids = append(ids, id)
			}
		}
		return ids
	}
	published := db.Text(`SELECT pg_current_wal_lsn()::text`) // the publication of the relay is older
	write(50)
	testprogram.Within(t, time.Minute, "Debezium to have them", func() bool { return len(debezium()) == 50 })
	testprogram.Within(t, time.Minute, "Debezium to have confirmed past the publication", func() bool {
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn > $2`, slot, published) == 1
	})
	write(20) // some of them Debezium may leave behind
	engine.Stop(t)
	write(30)
	file := filepath.Join(t.TempDir(), "taken-over.ndjson")
	config := filepath.Join(t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf("sources: [{name: text, table: public.outbox_text, rows: deleted}]\nsubscribers: [{name: file, path: %s}]\n", file)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--config="+config, "--slot="+slot, "--ops-listen=127.0.0.1:0")
	relay.AwaitStreaming()
	write(10)
	had := debezium()
	var got []string
	testprogram.Within(t, time.Minute, "the rest to come through the slot", func() bool {
		lines, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		got = nil
		for line := range bytes.Lines(lines) {
			var event struct{ ID string }
			if err := json.Unmarshal(line, &event); err != nil {
				return false
			}
			got = append(got, event.ID)
		}
		return slices.Contains(got, written[len(written)-1])
	})
	twice := 0
	for _, id := range written {
		inDebezium, inWalpost := slices.Contains(had, id), slices.Contains(got, id)
		if !inDebezium && !inWalpost {
			t.Errorf("%s is lost", id)
		}
		if inDebezium && inWalpost {
			twice++
		}
	}
	t.Logf("Debezium has sent %d, walpost from its slot %d, both %d of %d", len(had), len(got), twice, len(written))
	if twice > 0 {
		t.Errorf("%d of %d came twice after a clean stop", twice, len(written))
	}
	relay.Stop()
	testprogram.Within(t, time.Minute, "the relay that ran next to Debezium to have sent all", func() bool {
		return len(b.Records(t, shadow)) == len(seen)+len(written)
	})
}

// fromKafka is a record of a topic.
func fromKafka(r *kgo.Record) debeziumtest.Record {
	made := debeziumtest.Record{Topic: r.Topic, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		made.Headers = append(made.Headers, debeziumtest.Header{Name: h.Key, Value: h.Value})
	}
	return made
}

// compareWithDebezium compares what is in a topic with what Debezium has made, in its order, which is that of the commits:
// walpost's is that within each key.
func compareWithDebezium(t *testing.T, way, payload string, got, want []debeziumtest.Record) {
	byKey := func(records []debeziumtest.Record) map[string][]string {
		all := map[string][]string{}
		for _, r := range records {
			all[string(r.Key)] = append(all[string(r.Key)], string(headerOf(r, "id")))
		}
		return all
	}
	if g, w := byKey(got), byKey(want); !maps.EqualFunc(g, w, slices.Equal) {
		t.Errorf("%s: ids by key: got %q, want %q", payload, g, w)
	}
	for i, w := range want {
		at := slices.IndexFunc(got, func(r debeziumtest.Record) bool { return bytes.Equal(headerOf(r, "id"), headerOf(w, "id")) })
		if at < 0 {
			continue
		}
		g := got[at]
		difference := ""
		switch {
		case w.Fails:
			difference = fails
		case same(g.Value, w.Value):
		case json.Valid(g.Value) && normal(g.Value) == normal(w.Value):
			difference = spaces
		default:
			difference = lossy
		}
		value, expected := debeziumPayloads[payload][i], ""
		if way == "expanded" {
			expected = expandedDifferently[value]
		}
		if difference != expected {
			t.Errorf("%s %s: the difference is %q, want %q: got %s, Debezium %s", payload, value, difference, expected, shown(g.Value), shown(w.Value))
		}
		var own []string
		for _, h := range g.Headers {
			if strings.HasPrefix(h.Name, "walpost-") {
				own = append(own, h.Name)
				continue
			}
			theirs := slices.IndexFunc(w.Headers, func(o debeziumtest.Header) bool { return o.Name == h.Name })
			if theirs < 0 {
				t.Errorf("%s: Debezium has no header %s", payload, h.Name)
				continue
			}
			made, changed := differentHeaders[h.Name]
			if theirs := w.Headers[theirs].Value; same(h.Value, theirs) == changed || changed && string(theirs) != made {
				t.Errorf("%s: header %s: got %s, Debezium %s", payload, h.Name, shown(h.Value), shown(theirs))
			}
		}
		if want := []string{"walpost-position", "walpost-attempt", "walpost-term"}; !slices.Equal(own, want) {
			t.Errorf("%s: headers of walpost's own: got %q, want %q", payload, own, want)
		}
		for _, h := range w.Headers {
			// The connector says in its own headers which task of which connector it is.
			if !strings.HasPrefix(h.Name, "__debezium.context.") && !slices.ContainsFunc(g.Headers, func(o debeziumtest.Header) bool { return o.Name == h.Name }) {
				t.Errorf("%s: header %s of Debezium is not there", payload, h.Name)
			}
		}
	}
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func shown(text []byte) string {
	if text == nil {
		return "null"
	}
	return fmt.Sprintf("%q", text)
}

// normal is a JSON text without what a reader of it cannot see.
func normal(text []byte) string {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return string(text)
	}
	again, err := json.Marshal(value)
	if err != nil {
		return string(text)
	}
	return string(again)
}

func headerOf(r debeziumtest.Record, name string) []byte {
	for _, h := range r.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return nil
}
