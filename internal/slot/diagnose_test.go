package slot

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// well are the facts of a slot that was left as it is, with two tables and a source of messages.
func well() Facts {
	print := store.Fingerprint{Publication: "16400:700", Sources: []store.PublishedSource{
		{Name: "lessons", Schema: "public", Table: "outbox", OID: 16500, Entries: []string{"16401:700"}},
		{Name: "orders", Schema: "shop", Table: "events", OID: 16600, Entries: []string{"16402:700"}},
		{Name: "pulse", Messages: "pulse"},
	}}
	return Facts{
		Name: "walpost", Publication: "walpost", EverReady: true,
		Server: &wal.Slot{Name: "walpost", Plugin: "pgoutput", Confirmed: 0x100, WALStatus: "reserved"},
		Record: &store.SlotRecord{Name: "walpost", SystemID: "1", Timeline: 1, Epoch: 1, Confirmed: 0x100, Fingerprint: print, State: store.SlotReady, Ours: true},
		System: wal.System{ID: "1", Timeline: 1}, End: 0x200,
		Published: Published{Exists: true, Inserts: true, Now: store.Fingerprint{Publication: print.Publication, Sources: append([]store.PublishedSource{}, print.Sources...)}},
		Sources: []Source{
			{Name: "lessons", Table: pgx.Identifier{"public", "outbox"}, Marks: true},
			{Name: "orders", Table: pgx.Identifier{"shop", "events"}, Marks: true},
			{Name: "pulse"},
		},
	}
}

// fresh is a source without marks that is new to the slot, and not published yet.
func fresh(f *Facts) {
	f.Sources = append(f.Sources, Source{Name: "fresh", Table: pgx.Identifier{"public", "fresh"}})
	f.Published.Now.Sources = append(f.Published.Now.Sources, store.PublishedSource{Name: "fresh", Schema: "public", Table: "fresh", OID: 16700})
	f.Published.Missing = append(f.Published.Missing, "fresh")
}

// S-90: docs/postgres.md §3 to §5, what is found, and what is done.
func TestDiagnose_plansForEachTrouble(t *testing.T) {
	const both = "lessons, orders"
	const replace = "make the slot; record the unpublished rows as debt; stream"
	const keep = "keep the slot; record the unpublished rows as debt of: "
	const again = "; pass over them a second time when the transactions that write to them now have ended; stream"
	for name, test := range map[string]struct {
		change func(*Facts)
		want   string // the steps
		reason string
	}{
		"nothing": {func(*Facts) {}, "stream", ""},
		"the first start": {func(f *Facts) {
			f.Server, f.Record, f.EverReady, f.Published = nil, nil, false, Published{}
		}, "make the publication; make the slot; record the rows that wait as debt; stream", ""},
		"a publication was prepared": {func(f *Facts) { f.Server, f.Record, f.EverReady = nil, nil, false },
			"make the slot; record the rows that wait as debt; stream", ""},
		"the slot was prepared": {func(f *Facts) { f.Record, f.EverReady = nil, false }, keep + both + again, "prepared by someone else"},
		"the first creation broke off, no slot": {func(f *Facts) { f.Server, f.Record.State, f.EverReady = nil, store.SlotCreating, false },
			"make the slot; record the rows that wait as debt; stream", "broke off"},
		"the first creation broke off, with a slot": {func(f *Facts) { f.Record.State, f.EverReady = store.SlotCreating, false },
			"drop the slot; make the slot; record the rows that wait as debt; stream", "broke off"},
		"a later creation broke off": {func(f *Facts) { f.Server, f.Record.State = nil, store.SlotCreating }, replace, "broke off"},
		"the slot is missing":        {func(f *Facts) { f.Server = nil }, replace, "is gone"},
		"the slot is lost":           {func(f *Facts) { f.Server.WALStatus = "lost" }, "drop the slot; " + replace, "kept more than max_slot_wal_keep_size"},
		"the slot is invalidated":    {func(f *Facts) { f.Server.Invalidation = "idle_timeout" }, "drop the slot; " + replace, "idle_timeout"},
		"the publication is gone": {func(f *Facts) { f.Published = Published{Now: f.Published.Now} },
			"make the publication; drop the slot; " + replace, "brings nothing of one that is younger"},
		"the stream cannot be read":          {func(f *Facts) { f.Unreadable = "rows from before" }, "drop the slot; " + replace, "rows from before"},
		"another system":                     {func(f *Facts) { f.System.ID = "2" }, keep + both + again, "not the server or timeline"},
		"another timeline":                   {func(f *Facts) { f.System.Timeline = 2 }, keep + both + again, "not the server or timeline"},
		"the record is beyond the WAL":       {func(f *Facts) { f.Record.Confirmed = 0x300 }, keep + both + again, "cannot be"},
		"the slot is beyond the record":      {func(f *Facts) { f.Server.Confirmed = 0x180 }, keep + both + again, "another program moved it"},
		"the slot is rewound":                {func(f *Facts) { f.Server.Confirmed = 0x80 }, "stream", ""},
		"the publication was altered":        {func(f *Facts) { f.Published.Now.Publication = "16400:800" }, keep + both + again, "lessons, orders was changed"},
		"the publication was made again":     {func(f *Facts) { f.Published.Now.Publication = "16800:800" }, keep + both + again, "lessons, orders was changed"},
		"a table was taken off and put back": {func(f *Facts) { f.Published.Now.Sources[1].Entries = []string{"16409:800"} }, keep + "orders" + again, "orders was changed"},
		"a table was taken off": {func(f *Facts) {
			f.Published.Now.Sources[1].Entries, f.Published.Missing = nil, []string{"orders"}
		}, `add to the publication: "shop"."events"; ` + keep + "orders" + again, "orders was changed"},
		"a table was made again":         {func(f *Facts) { f.Published.Now.Sources[0].OID = 16900 }, keep + "lessons" + again, "lessons was changed"},
		"a table has another name":       {func(f *Facts) { f.Published.Now.Sources[0].Table = "outbox_2" }, keep + "lessons" + again, "lessons was changed"},
		"a partition has come with rows": {func(f *Facts) { f.Sources[0].Attached = true }, keep + "lessons" + again, "lessons was changed"},
		"partitions have come and gone":  {func(f *Facts) { f.Published.Now.Sources[0].Leaves = []store.Leaf{{OID: 7}} }, "stream", ""},
		"sources in another order": {func(f *Facts) {
			s := f.Published.Now.Sources
			s[0], s[1], f.Sources[0], f.Sources[1] = s[1], s[0], f.Sources[1], f.Sources[0]
		}, "stream", ""},
		"a source has another name": {func(f *Facts) { f.Published.Now.Sources[0].Name, f.Sources[0].Name = "courses", "courses" }, "stream", ""},
		"a source has left":         {func(f *Facts) { f.Published.Now.Sources, f.Sources = f.Published.Now.Sources[1:], f.Sources[1:] }, "stream", ""},
		"a source without marks is new": {fresh,
			`add to the publication: "public"."fresh"; keep the slot; record the rows that wait as debt of new sources: fresh` + again, "new sources: fresh"},
		"a source is back": {func(f *Facts) { f.Record.Fingerprint.Sources[1].Former = true },
			"keep the slot; record the rows that wait as debt of new sources: orders" + again, "new sources: orders"},
		"a new source, and an old one taken off": {func(f *Facts) {
			fresh(f)
			f.Published.Now.Sources[0].Entries, f.Published.Missing = nil, append(f.Published.Missing, "lessons")
		}, `add to the publication: "public"."outbox", "public"."fresh"; ` + keep + "lessons; record the rows that wait as debt of new sources: fresh" + again, "lessons was changed"},
		"a second pass was not made": {func(f *Facts) { f.Record.Fingerprint.Sources[0].SecondPass = true }, keep + "lessons" + again, "were running"},
		"a second pass is awaited":   {func(f *Facts) { f.Record.Fingerprint.Sources[0].SecondPass, f.Awaiting = true, true }, "stream", ""},
		"a second pass is due":       {func(f *Facts) { f.Record.Fingerprint.Sources[0].SecondPass, f.WritersEnded = true, true }, keep + "lessons; stream", "were running"},
		"a position is not believed": {func(f *Facts) { f.Doubts = []Doubt{{"billing", "it is of another server"}} },
			"keep the slot; begin again for subscribers: billing; stream", `"billing" is not believed: it is of another server`},
		"the slot is lost, and a position is not believed": {func(f *Facts) { f.Server, f.Doubts = nil, []Doubt{{"billing", "?"}} }, replace, "is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			test.change(&f)
			plan, err := Diagnose(f)
			if err != nil {
				t.Fatal(err)
			}
			if got := plan.String(); got != test.want {
				t.Errorf("plan\n got %s\nwant %s", got, test.want)
			}
			if !strings.Contains(plan.Reason, test.reason) || test.reason == "" && plan.Reason != "" {
				t.Errorf("reason %q, want %q in it", plan.Reason, test.reason)
			}
		})
	}
}

// What a person has to decide is refused with words.
func TestDiagnose_refusesWhatAPersonHasToDecide(t *testing.T) {
	unmarked := func(f *Facts) { f.Sources[0].Marks = false }
	for name, test := range map[string]struct {
		change func(*Facts)
		want   string
	}{
		"a lost slot that is not ours":           {func(f *Facts) { f.Server, f.Record.Ours = nil, false }, "did not make it"},
		"a repair, but a person wants to decide": {func(f *Facts) { f.Server, f.StopOnLoss, f.Unpublished = nil, true, 7 }, "rows of the tables that are unpublished: 7"},
		"a doubt, but a person wants to decide":  {func(f *Facts) { f.Doubts, f.StopOnLoss = []Doubt{{"billing", "?"}}, true }, "--on-lost-slot=repair"},
		"a lost slot without marks":              {func(f *Facts) { unmarked(f); f.Server = nil }, `source "lessons" are not marked`},
		"a table without marks was taken off": {func(f *Facts) {
			unmarked(f)
			f.Published.Now.Sources[0].Entries, f.Published.Missing = nil, []string{"lessons"}
		}, `source "lessons" are not marked`},
		"another slot marks a table":              {func(f *Facts) { f.MarkedByOthers = []store.MarkedTable{{Relation: "public.outbox", Slot: "it's"}} }, `WHERE slot_name = 'it''s'`},
		"a prepared slot without its publication": {func(f *Facts) { f.Record, f.EverReady, f.Published.Exists = nil, false, false }, "brings nothing of a publication that is younger"},
		"a prepared publication lacks a table":    {func(f *Facts) { f.Record, f.EverReady, f.Published.Missing = nil, false, []string{"orders"} }, `does not publish "shop"."events"`},
		"rows are left out":                       {func(f *Facts) { f.Published.Filters = map[string]string{"orders": "(kind = 1)"} }, `leaves out rows of "shop"."events" unless (kind = 1)`},
		"no inserts are published":                {func(f *Facts) { f.Published.Inserts = false }, "does not publish inserts"},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			test.change(&f)
			plan, err := Diagnose(f)
			var setup *wal.SetupError
			if !errors.As(err, &setup) {
				t.Fatalf("plan %v, error %v; want a SetupError", plan, err)
			}
			if text := setup.Problem + " " + setup.Fix; !strings.Contains(text, test.want) {
				t.Errorf("refused with %q, want %q in it", text, test.want)
			}
		})
	}
}

// S-91: what happened to one source is no reason to ask about another one without marks.
func TestDiagnose_leavesASourceWithoutMarksAloneThatLacksNothing(t *testing.T) {
	f := well()
	f.Sources[0].Marks = false
	f.Published.Now.Sources[1].Entries = []string{"16409:800"}
	plan, err := Diagnose(f)
	if err != nil || len(plan.Lacking) != 1 || plan.Lacking[0] != "orders" {
		t.Errorf("lacking %v, %v; want orders alone", plan.Lacking, err)
	}
}

func TestCompare_followsASourceByItsTable(t *testing.T) {
	f := well()
	before, now := f.Record.Fingerprint, f.Published.Now
	now.Sources[0].Name = "courses"
	now.Sources = now.Sources[:1]
	d := Compare(before, now)
	if d.Renamed["lessons"] != "courses" || len(d.Renamed) != 1 {
		t.Errorf("renamed %v, want lessons to courses", d.Renamed)
	}
	if len(d.Former) != 2 || d.Former[0].Name != "orders" || !d.Former[0].Former || d.Former[1].Name != "pulse" {
		t.Errorf("former %+v, want orders and pulse", d.Former)
	}
	next := d.Record(now, []string{"courses"})
	if len(next.Sources) != 3 || next.Sources[0].Name != "courses" || !next.Sources[0].SecondPass {
		t.Errorf("to be recorded: %+v", next)
	}
	if again := Compare(next, now); len(again.Former) != 2 || len(again.Changed)+len(again.Added)+len(again.Renamed) != 0 {
		t.Errorf("compared again: %+v, want the former ones and no change", again)
	}
}

func TestEpoch_growsWithAnotherSystem(t *testing.T) {
	record := &store.SlotRecord{SystemID: "1", Timeline: 1, Epoch: 3}
	for _, test := range []struct {
		record *store.SlotRecord
		system wal.System
		want   int32
	}{{nil, wal.System{ID: "1"}, 1}, {record, wal.System{ID: "1", Timeline: 2}, 3}, {record, wal.System{ID: "2"}, 4}} {
		if got := Epoch(test.record, test.system); got != test.want {
			t.Errorf("epoch of %v on %v: %d, want %d", test.record, test.system, got, test.want)
		}
	}
}
