package pgoutput_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/testdb"
)

// scenarios are what the golden files were recorded from. setup runs before the slot exists, each line
// of script after it, in one session.
var scenarios = []struct {
	name          string
	setup, script []string
}{
	{
		name:  "rows",
		setup: []string{`CREATE TABLE a (id bigint PRIMARY KEY, body text, n numeric, twice bigint GENERATED ALWAYS AS (id * 2) STORED)`, `CREATE TABLE b (id int, body jsonb)`},
		script: []string{
			`BEGIN; INSERT INTO a VALUES (1, 'one', 1.50), (2, NULL, NULL), (3, '', 'NaN'); INSERT INTO b VALUES (4, '{"n": 12345678901234567890.123456789}'); INSERT INTO a VALUES (5, 'zwölf', 0); COMMIT`,
			`INSERT INTO b VALUES (NULL, NULL), (6, 'null')`,
			`BEGIN; INSERT INTO a VALUES (7, 'never', 7); ROLLBACK`,
			`INSERT INTO a VALUES (8, 'after', 8)`,
		},
	},
	{
		name:  "changes",
		setup: []string{`CREATE TABLE a (id bigint PRIMARY KEY, body text)`, `CREATE TABLE whole (id int, body text)`, `ALTER TABLE whole REPLICA IDENTITY FULL`, `ALTER TABLE a ALTER body SET STORAGE EXTERNAL`},
		script: []string{
			`INSERT INTO a VALUES (1, repeat('toast', 450))`,
			`UPDATE a SET id = 2`,
			`DELETE FROM a`,
			`INSERT INTO whole VALUES (1, NULL)`,
			`UPDATE whole SET body = 'x'`,
			`DELETE FROM whole`,
			`INSERT INTO a VALUES (3, 'three')`,
			`UPDATE a SET body = 'drei'`,
			`TRUNCATE a, whole`,
		},
	},
	{
		name:  "altered",
		setup: []string{`CREATE TABLE a (id bigint PRIMARY KEY, body text)`},
		script: []string{
			`INSERT INTO a VALUES (1, 'before')`,
			`BEGIN; ALTER TABLE a ADD note text; ALTER TABLE a DROP body; INSERT INTO a VALUES (2, 'after'); COMMIT`,
		},
	},
	{
		name:  "partitions",
		setup: []string{`CREATE TABLE a (id bigint, month int, PRIMARY KEY (id, month)) PARTITION BY RANGE (month)`, `CREATE TABLE a_1 PARTITION OF a FOR VALUES FROM (1) TO (2)`, `CREATE TABLE a_2 (month int, dropped text, id bigint, PRIMARY KEY (id, month))`, `ALTER TABLE a_2 DROP dropped`, `ALTER TABLE a ATTACH PARTITION a_2 FOR VALUES FROM (2) TO (3)`},
		script: []string{
			`INSERT INTO a VALUES (10, 1), (20, 2)`,
			`UPDATE a SET month = 2 WHERE id = 10`, // moves the row: a delete and an insert
		},
	},
	{
		name:  "messages",
		setup: []string{`CREATE TABLE a (id bigint PRIMARY KEY)`},
		script: []string{
			`BEGIN; INSERT INTO a VALUES (1); SELECT pg_logical_emit_message(true, 'inside', '{"id": "e1"}'); SELECT pg_logical_emit_message(false, 'at once', 'x'); COMMIT`,
			`BEGIN; SELECT pg_logical_emit_message(false, 'rolled back', ''); SELECT pg_logical_emit_message(true, 'gone', ''); ROLLBACK`,
			`SELECT pg_logical_emit_message(true, '', '\x00ff'::bytea)`,
		},
	},
	{
		name:   "types",
		setup:  []string{`CREATE TYPE mood AS ENUM ('sad', 'happy')`, `CREATE DOMAIN positive AS int CHECK (VALUE > 0)`, `CREATE TYPE pair AS (x int, y text)`, `CREATE TABLE a (m mood, ms mood[], d positive, p pair, raw bytea, ok bool, c char(5), tags text[])`},
		script: []string{`INSERT INTO a VALUES ('sad', '{sad,happy}', 7, '(1,"a b")', '\xdeadbeef', true, 'ab', '{"x,y",NULL,"q\"z"}')`},
	},
	{
		name:  "origin",
		setup: []string{`CREATE TABLE a (id bigint PRIMARY KEY)`, `SELECT pg_replication_origin_create('walpost_golden')`},
		script: []string{
			`SELECT pg_replication_origin_session_setup('walpost_golden')`,
			`BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCDEF', now()); INSERT INTO a VALUES (1); COMMIT`,
			`SELECT pg_replication_origin_session_reset()`,
			`SELECT pg_replication_origin_drop('walpost_golden')`,
		},
	},
}

// The stored frames are from one server; this one says whether the machine's server means the same.
func TestDecode_understandsTheServerAtHand(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			frames := record(t, s.setup, s.script)
			got := dump(t, frames)
			golden := filepath.Join("testdata", s.name+".golden")
			if *update {
				var hex strings.Builder
				for _, frame := range frames {
					fmt.Fprintf(&hex, "%x\n", frame)
				}
				write(t, filepath.Join("testdata", s.name+".hex"), hex.String())
				write(t, golden, got)
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// record returns the frames that the server sends for script, read from a slot that was made before it.
func record(t *testing.T, setup, script []string) [][]byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db := testdb.NewEmpty(t)
	session := connect(t, db.DSN, "")
	for _, sql := range setup {
		run(t, session, sql)
	}
	run(t, session, `CREATE PUBLICATION golden FOR ALL TABLES WITH (publish_via_partition_root = true)`)

	replication := connect(t, db.DSN, "database")
	slot := db.Name // unique on the server, as a slot must be
	if _, err := pglogrepl.CreateReplicationSlot(ctx, replication, slot, "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range script {
		run(t, session, sql)
	}
	const end = "end of the recording"
	run(t, session, `SELECT pg_logical_emit_message(true, '`+end+`', '')`)

	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'golden'", "messages 'true'"}}
	if err := pglogrepl.StartReplication(ctx, replication, slot, 0, options); err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for {
		message, err := replication.ReceiveMessage(ctx)
		if err != nil {
			t.Fatalf("after %d frames: %v", len(frames), err)
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok || data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		xlog, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			t.Fatal(err)
		}
		if xlog.WALData[0] == 'M' && bytes.Contains(xlog.WALData, []byte(end)) {
			return frames[:len(frames)-1] // without the Begin of the end
		}
		if n := len(frames) - 1; xlog.WALData[0] == 'C' && n >= 0 && frames[n][0] == 'B' {
			frames = frames[:n] // before 15, transactions come that have nothing for us
			continue
		}
		frames = append(frames, bytes.Clone(xlog.WALData))
	}
}

func connect(t *testing.T, dsn, replication string) *pgconn.PgConn {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if replication != "" {
		config.RuntimeParams["replication"] = replication
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	// The database is dropped after this, and its slot must be free by then.
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgconn.PgConn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
