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
	if len(before.Sources[0].Entries) != 2 {
		t.Fatalf("got %+v, want the entry of the root, and by what it belongs to that", before)
	}
	db.Exec(`ALTER TABLE o DETACH PARTITION o_1; ALTER TABLE o ATTACH PARTITION o_1 FOR VALUES FROM (1) TO (2)`)
	again := read(t, db, leaf).Now
	if len(slot.Compare(before, again).Changed) != 1 {
		t.Errorf("got %+v after %+v: it was in no publication for a while", again, before)
	}
	before = again
	db.Exec(`ALTER PUBLICATION p DROP TABLE o; ALTER PUBLICATION p ADD TABLE o`)
	if after := read(t, db, leaf).Now; len(slot.Compare(before, after).Changed) != 1 {
		t.Errorf("got %+v after %+v, want it changed", after, before)
	}
}

// S-490: a partition that was taken off and attached again may hold rows that were written while it was in no
// publication. So may those below one that was.
func TestReadPublished_knowsAPartitionThatWasAttachedAgain(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`DROP TABLE outbox; CREATE TABLE outbox (id int, n int, type text, payload text) PARTITION BY RANGE (id)`)
	db.Exec(`CREATE TABLE o_1 PARTITION OF outbox FOR VALUES FROM (1) TO (2)`)
	db.Exec(`CREATE TABLE o_2 PARTITION OF outbox FOR VALUES FROM (2) TO (3) PARTITION BY RANGE (n)`)
	db.Exec(`CREATE TABLE o_2_1 PARTITION OF o_2 FOR VALUES FROM (1) TO (2)`)
	db.Exec(`CREATE PUBLICATION p FOR TABLE outbox WITH (publish_via_partition_root = true)`)
	before := read(t, db, sources).Now
	if got := slot.Compare(before, read(t, db, sources).Now); len(got.Partitions) != 0 {
		t.Fatalf("partitions %v have come without a change", got.Partitions)
	}
	for change, leaf := range map[string]string{
		`ALTER TABLE outbox DETACH PARTITION o_1; ALTER TABLE outbox ATTACH PARTITION o_1 FOR VALUES FROM (1) TO (2)`: "o_1",
		`ALTER TABLE outbox DETACH PARTITION o_2; ALTER TABLE outbox ATTACH PARTITION o_2 FOR VALUES FROM (2) TO (3)`: "o_2_1",
		`ALTER TABLE o_2 DETACH PARTITION o_2_1; ALTER TABLE o_2 ATTACH PARTITION o_2_1 FOR VALUES FROM (1) TO (2)`:   "o_2_1",
	} {
		db.Exec(change)
		after := read(t, db, sources).Now
		got := slot.Compare(before, after)
		if want := uint32(db.Int(`SELECT $1::regclass::oid::bigint`, leaf)); len(got.Changed) != 0 || len(got.Partitions) != 1 || got.Partitions[0] != want {
			t.Errorf("%s: changed %v, partitions %v; want the partition %d alone", change, got.Changed, got.Partitions, want)
		}
		before = after
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
