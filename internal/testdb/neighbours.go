package testdb

import (
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/pgserver"
)

// Neighbours are what shares a server with a database under test: another database in which everything has the same
// names, and in the database itself slots, publications, schemas and roles of other programs. They are there to be left
// alone.
type Neighbours struct {
	// Other is another database with an outbox, a publication "walpost" and a slot that walpost.slots knows.
	Other *DB
	// Slot is the slot of Other, Physical a physical slot, Program a slot of another program in the database itself, of
	// pgoutput, and Relay the slot of another relay of the database.
	Slot, Physical, Program, Relay string
	// Role is another program's.
	Role string

	db *DB
}

// NewOther returns the other database of a server. Tests of the server may share it: each finds it as it was.
func NewOther(t testing.TB, server *pgserver.Server) *DB {
	t.Helper()
	other := On(t, server)
	other.Exec(`CREATE PUBLICATION walpost FOR TABLE outbox`)
	other.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, other.Name)
	other.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state) VALUES ($1, '1', 1, 'ready')`, other.Name)
	other.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')`)
	return other
}

// NewNeighbours puts them around db, which is a database of the same server.
func NewNeighbours(t testing.TB, other, db *DB) *Neighbours {
	t.Helper()
	n := &Neighbours{Other: other, Slot: other.Name, Physical: db.Name + "_physical", Program: db.Name + "_program", Relay: db.Name + "_relay", Role: db.Name + "_neighbour", db: db}
	for _, sql := range []string{
		`CREATE SCHEMA theirs`,
		`CREATE TABLE theirs.outbox (LIKE outbox INCLUDING ALL)`,
		`CREATE TABLE theirs.orders (id bigint PRIMARY KEY, total numeric NOT NULL DEFAULT 0)`,
		`INSERT INTO theirs.orders VALUES (1, 10), (2, 20)`,
		`CREATE PUBLICATION theirs FOR TABLE theirs.orders, theirs.outbox`,
		`CREATE ROLE ` + n.Role + ` LOGIN`,
		`GRANT SELECT ON theirs.orders TO ` + n.Role,
		`ALTER ROLE ` + n.Role + ` SET track_activities = off`,
	} {
		db.Exec(sql)
	}
	db.Exec(`SELECT pg_create_physical_replication_slot($1, true)`, n.Physical)
	for name, plugin := range map[string]string{n.Program: "pgoutput", n.Relay: "pgoutput", db.Name + "_test": "test_decoding"} {
		db.Exec(`SELECT pg_create_logical_replication_slot($1, $2)`, name, plugin)
	}
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state) VALUES ($1, '1', 1, 'ready')`, n.Relay)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'theirs')`, n.Relay)
	t.Cleanup(func() {
		db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, n.Physical)
		db.Exec(`DROP OWNED BY ` + n.Role)
		db.Exec(`DROP ROLE ` + n.Role)
	})
	return n
}

// ofServer are queries for what belongs to the whole server: the name of each thing, and what there is to know of it.
var ofServer = []string{
	`SELECT 'slot ' || slot_name, concat_ws(' ', slot_type, plugin, database, temporary, active, to_jsonb(s)->>'failover') FROM pg_replication_slots s`,
	`SELECT 'role ' || rolname, (to_jsonb(r) - 'oid' - 'rolconfig')::text FROM pg_roles r WHERE rolname !~ '^pg_'`,
	`SELECT 'member ' || r.rolname || ' of ' || g.rolname, '' FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid JOIN pg_roles r ON r.oid = m.member`,
	`SELECT 'setting of role ' || coalesce(r.rolname, 'ALL') || ' in ' || coalesce(d.datname, 'ALL'), s.setconfig::text
	 FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase`,
	`SELECT 'setting ' || name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'`,
	`SELECT 'database ' || datname, concat_ws(' ', datdba, datacl) FROM pg_database`,
	`SELECT 'prepared ' || gid, owner FROM pg_prepared_xacts`,
	`SELECT 'session ' || pid, application_name FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name = 'neighbour'`,
}

// ofDatabase are such queries for one database.
var ofDatabase = []string{
	`SELECT 'schema ' || nspname, concat_ws(' ', nspowner, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_'`,
	`SELECT 'publication ' || pubname, (to_jsonb(p) - 'oid' - 'pubowner')::text FROM pg_publication p`,
	`SELECT 'publication ' || p.pubname || ' table ' || prrelid::regclass, (to_jsonb(r) - 'oid')::text
	 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid`,
	`SELECT 'relation ' || c.oid::regclass, concat_ws(' ', relkind, relpersistence, relreplident, relrowsecurity, relowner, relacl)
	 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname !~ '^(pg_|information_schema)'`,
	`SELECT 'column ' || c.oid::regclass || '.' || attname, concat_ws(' ', atttypid::regtype, attnotnull, pg_get_expr(adbin, adrelid), attacl)
	 FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	 WHERE attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'p') AND nspname !~ '^(pg_|information_schema)'`,
	`SELECT 'sequence ' || schemaname || '.' || sequencename, last_value::text FROM pg_sequences`,
	`SELECT 'trigger ' || tgname || ' on ' || tgrelid::regclass, '' FROM pg_trigger WHERE NOT tgisinternal`,
}

// State is everything that there is on the server and in the databases: rows, definitions, rights, settings, slots and
// sessions. The keys are names, with the name of the database in front of what belongs to one.
func (n *Neighbours) State() map[string]string {
	n.db.t.Helper()
	state := map[string]string{}
	read := func(db *DB, prefix, sql string) {
		n.db.t.Helper()
		rows, err := db.Pool.Query(db.t.Context(), sql)
		if err != nil {
			n.db.t.Fatalf("%s: %v", sql, err)
		}
		var name string
		var what *string
		if _, err := pgx.ForEachRow(rows, []any{&name, &what}, func() error {
			if what == nil {
				what = new(string)
			}
			state[prefix+name] = *what
			return nil
		}); err != nil {
			n.db.t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, sql := range ofServer {
		read(n.db, "", sql)
	}
	for i, db := range []*DB{n.db, n.Other} {
		prefix := []string{"", "other: "}[i]
		for _, sql := range ofDatabase {
			read(db, prefix, sql)
		}
		for _, table := range db.Texts(`SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
				WHERE relkind = 'r' AND nspname !~ '^(pg_|information_schema)'`) {
			read(db, prefix, `SELECT 'row ' || '`+table+`' || ' ' || t::text, count(*)::text FROM `+table+` t GROUP BY 1`)
		}
	}
	return state
}

// Changes compares two states. What has come has a +, what has gone a -, and what is another a ~ in front.
func Changes(before, after map[string]string) []string {
	changes := []string{}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		now, still := after[name]
		switch {
		case !still:
			changes = append(changes, "-"+name)
		case now != before[name]:
			changes = append(changes, "~"+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, was := before[name]; !was {
			changes = append(changes, "+"+name)
		}
	}
	return changes
}
