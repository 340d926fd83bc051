package doctor_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

// awkward are faults around names as a person may choose them.
var awkward = []fault{
	{name: "are all missing", check: "rights", level: doctor.Problem, says: `SELECT, DELETE, UPDATE ("published_at", "attempts") on The School.out"box's`,
		seed: asRole()},
	{name: "hides rows", check: "row-security", level: doctor.Problem, says: "row level security",
		seed: asRole(`ALTER TABLE "The School"."out""box's" ENABLE ROW LEVEL SECURITY`, `GRANT USAGE ON SCHEMA "The School" TO {role}`,
			`GRANT SELECT ON "The School"."out""box's" TO {role}`)},
	{name: "is off for the role", check: "track-activities", level: doctor.Warning, says: "is off", seed: asRole("ALTER ROLE {role} SET track_activities = off")},
	{name: "is gone", check: "publication", level: doctor.Problem, says: "does not exist", seed: then((*harness).relay, run(`DROP PUBLICATION "Wal Post's"`)), do: (*harness).relay},
	{name: "lack a source", check: "publication-tables", level: doctor.Problem, says: "lacks", seed: run(`CREATE PUBLICATION "Wal Post's" WITH (publish = 'insert')`)},
	{name: "are too many", check: "publication-tables", level: doctor.Problem, says: "no source",
		seed: then((*harness).relay, run(`CREATE TABLE "The School"."Went Home" (id int)`, `ALTER PUBLICATION "Wal Post's" ADD TABLE "The School"."Went Home"`))},
	{name: "are all", check: "publication-tables", level: doctor.Problem, says: "has all tables", seed: run(`CREATE PUBLICATION "Wal Post's" FOR ALL TABLES`), do: anotherPublication},
	{name: "are all", check: "publication-operations", level: doctor.Warning, says: "more than inserts",
		seed: run(`CREATE PUBLICATION "Wal Post's" FOR TABLE "The School"."out""box's"`)},
	{name: "leaves rows out", check: "publication-filter", level: doctor.Problem, says: "are left out", from: 15,
		seed: run(`CREATE PUBLICATION "Wal Post's" FOR TABLE "The School"."out""box's" WHERE (event_type <> 'test') WITH (publish = 'insert')`)},
	{name: "is unlogged", check: "source-table", level: doctor.Problem, says: "unlogged", seed: run(`ALTER TABLE "The School"."out""box's" SET UNLOGGED`)},
	{name: "has no published column", check: "source-repair", level: doctor.Warning, says: "no column",
		seed: run(`ALTER TABLE "The School"."out""box's" DROP published_at`)},
	{name: "is missing", check: "replica-identity", level: doctor.Problem, says: "no replica identity",
		seed: run(`ALTER TABLE "The School"."out""box's" DROP CONSTRAINT outbox_pkey`, "CREATE PUBLICATION everything FOR ALL TABLES")},
	{name: "is full of dead rows", check: "table-bloat", level: doctor.Warning, says: "dead rows",
		seed: func(h *harness) {
			run(`INSERT INTO "The School"."out""box's" (event_id, event_type, payload) SELECT n, 'x', '{}' FROM generate_series(1, 12000) n`,
				`DELETE FROM "The School"."out""box's"`)(h)
			h.await("the statistics are in", func() bool {
				return h.db.Int(`SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = '"The School"."out""box''s"'::regclass`) > 10_000
			})
		}},
}

// What is printed runs as it is printed, whatever the names in it.
func TestDoctor_printsSQLThatRunsWithNamesThatNeedQuotes(t *testing.T) {
	t.Parallel()
	for _, f := range awkward {
		t.Run(f.check+" "+f.name, func(t *testing.T) {
			t.Parallel()
			h := newHarnessOn(t, nil, testdb.New(t))
			run(`CREATE SCHEMA "The School"`, `ALTER TABLE outbox RENAME TO "out""box's"`, `ALTER TABLE "out""box's" SET SCHEMA "The School"`)(h)
			h.options.Sources[0].Schema, h.options.Sources[0].Table = "The School", `out"box's`
			h.options.Publication = "Wal Post's"
			f.try(h)
		})
	}
}

// asRole lets the doctor be a role with an awkward name, and runs statements about it, {role}.
func asRole(statements ...string) func(*harness) {
	return func(h *harness) {
		role := h.roleNamed(h.db.Name+` o'"neil`, "")
		for _, sql := range statements {
			execute(h.t, h.db.DSN, strings.ReplaceAll(sql, "{role}", pgx.Identifier{role}.Sanitize()))
		}
	}
}
