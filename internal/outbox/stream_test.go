package outbox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/pgoutput"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// Each type stands once as id and payload of an event, so that whatever a column can hold is compared.
// (F-12, F-50, F-56)
var typedValues = []struct{ typ, values string }{
	{"bool", `(true), (false)`},
	{"int2", `(-32768)`},
	{"int8", `(9223372036854775807)`},
	{"oid", `(4294967295)`},
	{"numeric", `('NaN'), ('-Infinity'), (1.50), (1234567890123456789012345678901234567890.1234567890)`},
	{"numeric(10,4)", `(1.5)`},
	{"float4", `(0.1), ('-0'), (1e30)`},
	{"float8", `(0.1), (1.0/3), ('NaN'), ('Infinity'), (1e300)`},
	{"money", `(1234.5)`},
	{"text", `('it''s "x" \ é'), (' ')`},
	{"varchar(10)", `('ab  ')`},
	{"char(10)", `('ab')`},
	{`"char"`, `('x')`},
	{"name", `('n')`},
	{"bytea", `('\xdeadbeef00ff')`},
	{"date", `('2024-03-10'), ('infinity'), ('0044-03-15 BC')`},
	{"time", `('01:30:00.123456')`},
	{"timetz", `('01:30:00+05:30')`},
	{"timestamp", `('2024-03-10 01:30:00'), ('-infinity')`},
	{"timestamptz", `('2024-03-10 06:30:00.1+00'), ('infinity')`},
	{"interval", `('1 mon 2 days -03:04:05.6'), ('-1 year')`},
	{"uuid", `('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')`},
	{"json", `('{"a": 9007199254740993,  "a":"\u0000"}'), ('null'), ('1.50')`},
	{"jsonb", `('{"id":9007199254740993,"n":12345678901234567890.123456789,"neg":-9223372036854775808,"e":1e30}'), ('null'), ('""')`},
	{"xml", `('<a b="1">x</a>')`},
	{"inet", `('127.0.0.1'), ('10.0.0.0/8'), ('::1')`},
	{"cidr", `('10.0.0.0/8')`},
	{"macaddr", `('08:00:2b:01:02:03')`},
	{"bit(3)", `('101')`},
	{"varbit", `('10')`},
	{"int[]", `('{1,NULL,3}'), ('{{1,2},{3,4}}'), ('{}')`},
	{"text[]", `('{"x,y",NULL,"q\"z"}')`},
	{"timestamptz[]", `('{"2024-03-10 06:30:00+00"}')`},
	{"bytea[]", `(ARRAY['\xff'::bytea])`},
	{"bool[]", `('{t,f}')`},
	{"mood", `('sad')`},
	{"mood[]", `('{sad,happy}')`},
	{"positive", `(7)`},
	{"pair", `(ROW(1, 'a "b"', '\xff', '2024-03-10 06:30:00+00'))`},
	{"pair[]", `(ARRAY[ROW(1, 'x', NULL, NULL)::pair])`},
	{"tstzrange", `('[2024-03-10 06:30:00+00,)')`},
	{"int4range", `('[1,5)')`},
	{"int4multirange", `('{[1,2), [5,9)}')`},
	{"tsvector", `('a fat cat')`},
	{"point", `('(1.5,0.1)')`},
	{"regclass", `('public.o')`},
	{"pg_lsn", `('16/B374D848')`},
	{"hstore", `('a=>1, b=>NULL')`},
	{"ltree", `('top.science')`},
	{"citext", `('MixEd')`},
}

// Debt and repair read from the table what the stream would have brought, and receivers dedupe and verify
// by bytes. All defaults of the database are set against us, as someone's role may have them.
func TestEvent_isTheSameByStreamAndByTable(t *testing.T) {
	db := testdb.New(t)
	for _, sql := range []string{
		`CREATE EXTENSION hstore`, `CREATE EXTENSION ltree`, `CREATE EXTENSION citext`,
		`CREATE TYPE mood AS ENUM ('sad', 'happy')`, `CREATE DOMAIN positive AS int CHECK (VALUE > 0)`,
		`CREATE TYPE pair AS (x int, y text, z bytea, at timestamptz)`,
		`CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert')`,
		`ALTER DATABASE ` + db.Name + ` SET datestyle = 'German'`,
		`ALTER DATABASE ` + db.Name + ` SET timezone = 'America/New_York'`,
		`ALTER DATABASE ` + db.Name + ` SET intervalstyle = 'iso_8601'`,
		`ALTER DATABASE ` + db.Name + ` SET bytea_output = 'escape'`,
		`ALTER DATABASE ` + db.Name + ` SET extra_float_digits = -3`,
	} {
		db.Exec(sql)
	}
	db.Pinned = db.Open() // sessions that have these defaults

	stream := openStream(t, db)
	for _, test := range typedValues {
		db.Exec(`CREATE TABLE o (nr serial PRIMARY KEY, value ` + test.typ + `, kind text, published_at timestamptz)`)
		source := outbox.Source{Name: "o", Schema: "public", Table: "o", Columns: outbox.Columns{
			ID: "nr", Type: "kind", Payload: "value", Headers: "value", Time: "value", Key: "value", Order: []string{"nr"}}}
		table := inspect(t, db, &source)
		db.Exec(`INSERT INTO o (value) VALUES ` + test.values)
		db.Exec(`INSERT INTO o VALUES (DEFAULT, NULL, 'last')`)

		streamed, tabled := stream.until(t, table, "last"), unpublished(t, db, table)
		if len(streamed) != len(tabled) || len(streamed) < 2 {
			t.Fatalf("%s: %d rows by stream, %d by table", test.typ, len(streamed), len(tabled))
		}
		for i := range streamed {
			tabled[i].CommittedAt = time.Time{} // known only with track_commit_timestamp
			if got, want := text(tabled[i]), text(streamed[i]); got != want {
				t.Errorf("%s: by table\n%s, by stream\n%s", test.typ, got, want)
			}
			if isLast := i == len(streamed)-1; isLast != (streamed[i].Payload == nil) {
				t.Errorf("%s: row %d has payload %q", test.typ, i, streamed[i].Payload)
			}
		}
		markAsStreamed(t, db, table, test.typ, streamed)
		source.Columns.Time = "" // the occurrence is of type and payload
		table = inspect(t, db, &source)
		db.Exec(`UPDATE o SET published_at = NULL`)
		timeless := unpublished(t, db, table)
		if timeless[0].Occurrence == streamed[0].Occurrence || timeless[1].Occurrence == timeless[0].Occurrence {
			t.Errorf("%s: occurrences are %q and %q, with the time %q", test.typ, timeless[0].Occurrence, timeless[1].Occurrence, streamed[0].Occurrence)
		}
		markAsStreamed(t, db, table, test.typ+" without a time", timeless)
		db.Exec(`DROP TABLE o`)
	}
}

// What the pins are for: one value each, written out.
func TestUnpublished_doesNotDependOnTheDefaultsOfTheDatabase(t *testing.T) { // F-50
	db := testdb.New(t)
	for _, setting := range []string{`datestyle = 'German'`, `timezone = 'America/New_York'`, `bytea_output = 'escape'`, `intervalstyle = 'iso_8601'`, `extra_float_digits = -3`} {
		db.Exec(`ALTER DATABASE ` + db.Name + ` SET ` + setting)
	}
	db.Pinned = db.Open()
	table := foreign(t, db, `id int PRIMARY KEY, type text, payload bytea, occurred_at timestamptz, partition_key interval, topic float8, published_at timestamptz`)
	db.Exec(`INSERT INTO o VALUES (1, 't', '\xdeadbeef', '2024-03-10 06:30:00+00', '1 mon 2 days', 0.1)`)
	e := unpublished(t, db, table)[0]
	for _, test := range []struct{ got, want string }{
		{string(e.Payload), `\xdeadbeef`}, {e.OccurredAt, "2024-03-10 06:30:00+00"}, {e.Key, "1 mon 2 days"}, {e.Topic, "0.1"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// A testStream reads a temporary slot on publication p; it confirms nothing.
type testStream struct {
	conn    *pgconn.PgConn
	decoder *pgoutput.Decoder
	marked  []string // Rows that came with their published column set
}

func openStream(t *testing.T, db *testdb.DB) *testStream {
	t.Helper()
	config, err := postgres.ReplicationConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := pglogrepl.CreateReplicationSlot(t.Context(), conn, db.Name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true}); err != nil {
		t.Fatal(err)
	}
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'p'"}}
	if err := pglogrepl.StartReplication(t.Context(), conn, db.Name, 0, options); err != nil {
		t.Fatal(err)
	}
	return &testStream{conn: conn, decoder: pgoutput.NewDecoder()}
}

// until returns the events of table up to the one of that type.
func (s *testStream) until(t *testing.T, table *outbox.Table, last string) (events []*event.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		message, err := s.conn.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok || data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		xlog, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := s.decoder.Decode(xlog.WALData)
		if err != nil {
			t.Fatal(err)
		}
		row, ok := decoded.(*pgoutput.Insert)
		if !ok || row.Relation.ID != table.OID {
			continue
		}
		var columns []string
		for _, c := range row.Relation.Columns {
			columns = append(columns, c.Name)
		}
		layout, err := table.Layout(columns)
		if err != nil {
			t.Fatal(err)
		}
		e := layout.Event(row.Values)
		if layout.Published(row.Values) {
			s.marked = append(s.marked, e.Row)
			continue
		}
		events = append(events, e)
		if e.Type == last {
			return events
		}
	}
}

// F-13: an update that moves a row to another partition arrives as an insert.
func TestPublished_tellsAMarkThatMovesTheRowFromAnEvent(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (id int, type text, payload text, delivered bool NOT NULL DEFAULT false, PRIMARY KEY (id, delivered)) PARTITION BY LIST (delivered)`)
	db.Exec(`CREATE TABLE o_waiting PARTITION OF o FOR VALUES IN (false); CREATE TABLE o_done PARTITION OF o FOR VALUES IN (true)`)
	db.Exec(`CREATE PUBLICATION p FOR TABLE o WITH (publish = 'insert', publish_via_partition_root = true)`)
	table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Mark: true})
	stream := openStream(t, db)
	db.Exec(`INSERT INTO o VALUES (1, 't', 'x')`)
	rows := unpublished(t, db, table)
	if got := mustMark(t, db, table, outbox.Marked{Row: rows[0].Row, Identity: rows[0].Identity()}); got.Marked != 1 {
		t.Fatalf("got %+v, want 1 marked", got)
	}
	db.Exec(`INSERT INTO o VALUES (2, 'last', 'y')`)
	events := stream.until(t, table, "last")
	if got, want := ids(events), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("events: got %q, want %q", got, want)
	}
	if got, want := stream.marked, []string{`["1","t"]`}; !slices.Equal(got, want) {
		t.Errorf("rows that came marked: got %q, want %q", got, want)
	}
}
