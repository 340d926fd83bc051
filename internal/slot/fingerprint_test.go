package slot_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/testdb"
)

var sources = []*outbox.Source{{Name: "lessons", Schema: "public", Table: "outbox"}, {Name: "m", Messages: "m"}}

func read(t *testing.T, db *testdb.DB, sources []*outbox.Source) slot.Published {
	t.Helper()
	published, err := slot.ReadPublished(t.Context(), db.Pinned, "p", sources)
	if err != nil {
		t.Fatal(err)
	}
	return published
}

func TestReadPublished_changesWithWhatIsPublished(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE PUBLICATION p FOR TABLE public.outbox WITH (publish = 'insert')`)
	before := read(t, db, sources)
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 't', '{}')`)
	db.Exec(`ALTER TABLE outbox ADD note text`)
	db.Exec(`VACUUM FULL outbox`)
	if got := read(t, db, sources); !got.Now.Equal(before.Now) {
		t.Fatalf("rows, columns and VACUUM FULL: got %+v, want it unchanged, %+v", got, before)
	}
	for _, change := range []string{
		`ALTER PUBLICATION p DROP TABLE outbox`,
		`ALTER PUBLICATION p ADD TABLE outbox`, // the hole between these two leaves no message
		`ALTER PUBLICATION p SET (publish = 'insert, delete')`,
		`DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE outbox`,
		`CREATE TABLE fresh (LIKE outbox INCLUDING ALL); DROP TABLE outbox CASCADE; ALTER TABLE fresh RENAME TO outbox; ALTER PUBLICATION p ADD TABLE outbox`,
	} {
		db.Exec(change)
		after := read(t, db, sources)
		if got := slot.Compare(before.Now, after.Now).Changed; len(got) != 1 || got[0] != "lessons" {
			t.Errorf("%s: changed are %v, want lessons", change, got)
		}
		before = after
	}
}

func TestReadPublished_ofAPartitionIsItsRoots(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (id int, type text, payload text) PARTITION BY RANGE (id)`)
	db.Exec(`CREATE TABLE o_1 PARTITION OF o FOR VALUES FROM (1) TO (2)`)
	db.Exec(`CREATE PUBLICATION p FOR TABLE o WITH (publish_via_partition_root = true)`)
	leaf := []*outbox.Source{{Name: "leaf", Schema: "public", Table: "o_1"}}
	before := read(t, db, leaf).Now
	if len(before.Sources[0].Entries) != 1 {
		t.Fatalf("got %+v, want the entry of the root", before)
	}
	db.Exec(`ALTER PUBLICATION p DROP TABLE o; ALTER PUBLICATION p ADD TABLE o`)
	if after := read(t, db, leaf).Now; len(slot.Compare(before, after).Changed) != 1 {
		t.Errorf("got %+v after %+v, want it changed", after, before)
	}
}

func TestReadPublished_saysWhatIsMissing(t *testing.T) {
	db := testdb.New(t)
	if got := read(t, db, sources); got.Exists || len(got.Missing) != 1 {
		t.Errorf("got %+v, want no publication", got)
	}
	db.Exec(`CREATE PUBLICATION p WITH (publish = 'update')`)
	if got := read(t, db, sources); !got.Exists || got.Inserts || len(got.Missing) != 1 || got.Missing[0] != "lessons" {
		t.Errorf("got %+v, want one without inserts and without the table", got)
	}
	db.Exec(`DROP PUBLICATION p; CREATE PUBLICATION p FOR ALL TABLES`)
	if got := read(t, db, sources); !got.Inserts || len(got.Missing) != 0 {
		t.Errorf("got %+v, want one that carries all", got)
	}
	gone := []*outbox.Source{{Name: "s", Schema: "public", Table: "gone"}}
	if _, err := slot.ReadPublished(t.Context(), db.Pinned, "p", gone); !errors.Is(err, slot.ErrNoTable) {
		t.Errorf("got %v, want ErrNoTable", err)
	}
}

// S-94: only a transaction that has written can have a row that is not visible yet: in a partition, below a savepoint, or
// prepared.
func TestFindWriters_findsThoseThatHaveWrittenToTheTables(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"max_prepared_transactions": "5"})
	db := testdb.On(t, server)
	db.Exec(`CREATE TABLE o (id int PRIMARY KEY, type text, payload text) PARTITION BY RANGE (id)`)
	db.Exec(`CREATE TABLE o_1 PARTITION OF o FOR VALUES FROM (1) TO (100); CREATE TABLE other (id int)`)
	source := outbox.Source{Name: "o", Schema: "public", Table: "o"}
	table, err := source.Inspect(t.Context(), db.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	tables := []*outbox.Table{table}
	begin := func(statements ...string) *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		for _, sql := range append([]string{`BEGIN`}, statements...) {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		return conn
	}
	find := func(what string, want int) []slot.Writer {
		t.Helper()
		writers, err := slot.FindWriters(t.Context(), db.Pinned, tables)
		if err != nil || len(writers) != want {
			t.Fatalf("%s: %d writers (%v), %v, want %d", what, len(writers), writers, err, want)
		}
		return writers
	}
	begin(`INSERT INTO other VALUES (1)`, `SELECT * FROM o`)
	begin(`DELETE FROM o WHERE false`)
	find("none has written", 0)
	commit := begin(`SAVEPOINT s`, `INSERT INTO o_1 VALUES (1, 't', '{}')`)
	prepared := begin(`INSERT INTO o VALUES (2, 't', '{}')`)
	writers := find("two have written", 2)
	if _, err := prepared.Exec(t.Context(), `PREPARE TRANSACTION 'forgotten'`); err != nil {
		t.Fatal(err)
	}
	found := find("one is prepared", 2)
	if who := found[1].Who; who == "" || !strings.Contains(who, "'forgotten'") || !strings.Contains(found[0].Who, "o_1") {
		t.Errorf("who is %v, want the query and the name of the prepared one", found)
	}
	still := func(what string, want int) {
		t.Helper()
		if running, err := slot.StillWriting(t.Context(), db.Pinned, writers); err != nil || len(running) != want {
			t.Fatalf("%s: %v, %v, want %d", what, running, err, want)
		}
	}
	still("prepared later", 2)
	if _, err := commit.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	still("one has committed", 1)
	db.Exec(`ROLLBACK PREPARED 'forgotten'`)
	still("both have ended", 0)
}
