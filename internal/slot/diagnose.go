package slot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// Kind is what happens to the slot.
type Kind string

// The kinds of a plan. Of the last two every unpublished row of the tables at fault becomes debt, so that nothing is
// lost whatever the stream lacks.
const (
	Stream  Kind = "stream" // it is as it was left
	Create  Kind = "create" // there was none before
	Replace Kind = "again"  // repair A: a new one begins where the snapshot of the rows ends
	Keep    Kind = "kept"   // repair B: what it brings of the rows once more is known by their identity
)

// Plan says what to do, in the order in which it is done.
type Plan struct {
	Kind   Kind
	Reason string // of a repair

	MakePublication bool
	AddTables       []pgx.Identifier // to the publication

	Drop  bool // the slot that is there
	Adopt bool // it was prepared by someone else and never read by us: everyone is owed what waits

	// Lacking are sources of which the stream may lack rows, Added are sources that are new to the slot.
	Lacking, Added []string
	// Doubted are subscribers whose positions are not believed: they begin again where the slot does.
	Doubted []string
	// Second is the second pass over the lacking sources: no transaction is waited for after it.
	Second bool
	// LostMessages are sources without a table: what the stream lacks of them is lost.
	LostMessages []string
}

// Repairs says whether rows of the tables become debt although the slot was in use before.
func (p Plan) Repairs() bool {
	return p.Kind == Replace || p.Kind == Keep && len(p.Lacking)+len(p.Doubted) > 0
}

// String lists the steps.
func (p Plan) String() string {
	var steps []string
	add := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	list := func(names []string) string { return strings.Join(names, ", ") }
	if p.MakePublication {
		add("make the publication")
	}
	if len(p.AddTables) > 0 {
		add("add to the publication: %s", list(quoted(p.AddTables)))
	}
	if p.Drop {
		add("drop the slot")
	}
	switch p.Kind {
	case Create:
		add("make the slot")
		add("record the rows that wait as debt")
	case Replace:
		add("make the slot")
		add("record the unpublished rows as debt")
	case Keep:
		add("keep the slot")
		if len(p.Lacking) > 0 {
			add("record the unpublished rows as debt of: %s", list(p.Lacking))
		}
	}
	if len(p.Added) > 0 && (p.Kind == Keep) {
		add("record the rows that wait as debt of new sources: %s", list(p.Added))
	}
	if len(p.Doubted) > 0 && p.Kind == Keep {
		add("begin again for subscribers: %s", list(p.Doubted))
	}
	if p.Kind == Keep && !p.Second && len(p.Lacking)+len(p.Added) > 0 {
		add("pass over them a second time when the transactions that write to them now have ended")
	}
	add("stream")
	return strings.Join(steps, "; ")
}

// Diagnose says what to do. The error is a *wal.SetupError: a person has to act, and nothing has been changed.
func Diagnose(f Facts) (Plan, error) {
	if err := refuseForeign(f); err != nil {
		return Plan{}, err
	}
	plan := Plan{}
	var difference Difference
	if f.Record != nil {
		difference = Compare(f.Record.Fingerprint, f.Published.Now)
	}
	if err := planPublication(f, &plan); err != nil {
		return Plan{}, err
	}
	planSlot(f, difference, &plan)
	if f.Record != nil && f.EverReady && !plan.Adopt {
		if err := mayRepair(f, plan); err != nil {
			return Plan{}, err
		}
	}
	return plan, nil
}

// refuseForeign refuses to mark tables that another slot marks.
func refuseForeign(f Facts) error {
	if len(f.MarkedByOthers) == 0 {
		return nil
	}
	other := f.MarkedByOthers[0]
	return &wal.SetupError{
		Problem: fmt.Sprintf("slot %q marks the rows of %s already, and a mark stands for the subscribers of one slot", other.Slot, other.Relation),
		Fix:     fmt.Sprintf("set mark: off for the source at one of the two slots (docs/RUNBOOK.md, \"Marks fail\"); or, if slot %q is not used any more: %s", other.Slot, store.ForgetSlot(other.Slot))}
}

// planPublication makes or completes the publication. It comes before the slot, always: decoding looks at the catalogue
// as it was at each point of the WAL, so a publication that is younger than the slot does not exist for it.
func planPublication(f Facts, plan *Plan) error {
	switch {
	case len(f.Published.Unstreamed) > 0:
		return f.Published.Unstreamed[0]
	case !f.Published.Exists && f.Server != nil && f.Record == nil:
		return &wal.SetupError{
			Problem: fmt.Sprintf("publication %q does not exist, but its slot does: a slot brings nothing of a publication that is younger", f.Publication),
			Fix: fmt.Sprintf("drop the slot, make the publication first (%s), then the slot; or choose another name with slot (WALPOST_SLOT) and let walpost make both",
				advice.CreatePublication(f.Publication, tablesOf(f.Sources)))}
	case !f.Published.Exists:
		plan.MakePublication = true
		return nil
	case !f.Published.Inserts:
		fix := advice.PublishInserts(f.Publication).String()
		if f.Record == nil { // one that no relay has read can be another program's
			fix = "choose another name with publication (WALPOST_PUBLICATION) and let walpost make it, or let the owner of this one publish inserts"
		}
		return &wal.SetupError{Problem: fmt.Sprintf("publication %q does not publish inserts", f.Publication), Fix: fix}
	}
	for _, s := range f.Sources {
		if filter := f.Published.Filters[s.Name]; filter != "" {
			return filtered(f.Publication, s, filter)
		}
		if slices.Contains(f.Published.Missing, s.Name) {
			plan.AddTables = append(plan.AddTables, s.Table)
		}
	}
	if f.Record == nil && len(plan.AddTables) > 0 { // someone else made it, and meant something by it
		return wal.NotPublished(f.Publication, plan.AddTables, nil)
	}
	return nil
}

// filtered refuses a row filter: the server says nothing about a row that it leaves out, so that no subscriber would get it
// and no one would know. What was left out meanwhile is sent by the repair after the filter is gone.
func filtered(publication string, source Source, filter string) error {
	return &wal.SetupError{
		Problem: fmt.Sprintf("publication %q leaves out rows of %s unless %s: they would reach no subscriber, and be owed to none", publication, source.Table.Sanitize(), filter),
		Fix: fmt.Sprintf("let the owner of the publication take the row filter off; walpost doctor prints the statement, and walpost then sends what was left out (source %q). "+
			"What a subscriber wants is said with events: of the subscriber", source.Name)}
}

// planSlot decides the kind. (docs/postgres.md §4)
func planSlot(f Facts, difference Difference, plan *Plan) {
	server, record := f.Server, f.Record
	all := tableNames(f.Sources)
	becomes := func(kind Kind, lacking []string, format string, args ...any) {
		plan.Kind, plan.Lacking, plan.Reason = kind, lacking, fmt.Sprintf(format, args...)
		if kind == Replace {
			plan.Drop = server != nil
			if !f.EverReady { // the first creation broke off: this is still the first
				plan.Kind, plan.Lacking = Create, nil
			}
		}
		if f.EverReady && !plan.Adopt {
			plan.LostMessages = messageNames(f.Sources)
		}
	}
	for _, d := range f.Doubts {
		plan.Doubted = append(plan.Doubted, d.Subscriber)
	}
	plan.Added = difference.Added
	all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(plan.Added, name) })
	switch {
	case server == nil && record == nil:
		plan.Kind = Create
	case record == nil:
		plan.Adopt = true
		becomes(Keep, all, "slot %q was prepared by someone else; it is used from %v on and never dropped", f.Name, server.Confirmed)
	case record.State == store.SlotCreating: // no row has been taken from it yet
		becomes(Replace, all, "making slot %q broke off", f.Name)
	case server == nil:
		becomes(Replace, all, "slot %q is gone", f.Name)
	case server.Lost():
		becomes(Replace, all, "slot %q is lost: %s", f.Name, server.LostReason())
	case plan.MakePublication:
		becomes(Replace, all, "publication %q was gone, and slot %q brings nothing of one that is younger", f.Publication, f.Name)
	case f.Unreadable != "":
		becomes(Replace, all, "%s", f.Unreadable)
	case systemOf(record) != f.System:
		becomes(Keep, all, "this is not the server or timeline that slot %q was read from (%s/%d, now %s/%d)",
			f.Name, record.SystemID, record.Timeline, f.System.ID, f.System.Timeline)
	case record.Confirmed > f.End:
		becomes(Keep, all, "%v is recorded as confirmed of slot %q, beyond %v, the end of the WAL: that cannot be, so it is not believed", record.Confirmed, f.Name, f.End)
	case server.Confirmed > record.Confirmed:
		becomes(Keep, all, "slot %q stands at %v, beyond the %v that was recorded: another program moved it or made it again", f.Name, server.Confirmed, record.Confirmed)
	default:
		planSources(f, difference, plan)
	}
	if plan.Kind == Create || plan.Kind == Replace {
		plan.Doubted = nil // a new slot has nothing that they could be beyond
	}
}

// planSources compares source by source: what happened to one says nothing about another.
func planSources(f Facts, difference Difference, plan *Plan) {
	var reasons []string
	lacking := difference.Changed
	for _, s := range f.Sources {
		gap := s.Attached || slices.Contains(f.Published.Missing, s.Name) && !slices.Contains(plan.Added, s.Name)
		if gap && !slices.Contains(lacking, s.Name) {
			lacking = append(lacking, s.Name)
		}
	}
	if len(lacking) > 0 {
		reasons = append(reasons, fmt.Sprintf("what the publication carries of %s was changed: rows may be missing from the stream", strings.Join(lacking, ", ")))
	}
	if again := difference.SecondPass; len(again) > 0 && !f.Awaiting {
		plan.Second = f.WritersEnded && len(lacking)+len(plan.Added) == 0
		for _, name := range again {
			if !slices.Contains(lacking, name) {
				lacking = append(lacking, name)
			}
		}
		reasons = append(reasons, fmt.Sprintf("rows of %s were written by transactions that were running when a repair read the table", strings.Join(again, ", ")))
	}
	for _, d := range f.Doubts {
		reasons = append(reasons, fmt.Sprintf("what is recorded of subscriber %q is not believed: %s", d.Subscriber, d.Reason))
	}
	if len(plan.Added) > 0 {
		reasons = append(reasons, "new sources: "+strings.Join(plan.Added, ", "))
	}
	plan.Kind, plan.Lacking, plan.Reason = Stream, lacking, strings.Join(reasons, "; ")
	if len(reasons) > 0 {
		plan.Kind = Keep
	}
}

// mayRepair refuses what a person has to decide.
func mayRepair(f Facts, plan Plan) error {
	if plan.Kind == Replace && !f.Record.Ours {
		return &wal.SetupError{
			Problem: fmt.Sprintf("%s, and walpost did not make it, so it does not replace it", plan.Reason),
			Fix:     fmt.Sprintf("%s; %s; then start walpost again: it sends every unpublished row first", advice.DropSlot(f.Name), advice.CreateSlot(f.Name))}
	}
	if !plan.Repairs() || plan.Second {
		return nil
	}
	if f.StopOnLoss {
		return &wal.SetupError{
			Problem: fmt.Sprintf("%s. What committed after %v may be missing from the stream; rows of the tables that are unpublished: %d", plan.Reason, f.Record.Confirmed, f.Unpublished),
			Fix:     "start walpost once with --on-lost-slot=repair (WALPOST_ON_LOST_SLOT): every unpublished row is recorded as owed and sent, some perhaps for the second time"}
	}
	for _, s := range f.Sources {
		if slices.Contains(plan.Lacking, s.Name) && !s.Marks && !s.RepairAll {
			return &wal.SetupError{
				Problem: fmt.Sprintf("%s. Rows of source %q are not marked when they are delivered, so no one knows which of them are missing after %v", plan.Reason, s.Name, f.Record.Confirmed),
				Fix:     fmt.Sprintf("set repair: all for the source to send all rows that its table has, again; or go on without them: %s", store.ForgetSlotAndPositions(f.Name))}
		}
	}
	return nil
}

// tableNames are the names of the sources that have a table.
func tableNames(sources []Source) []string {
	var names []string
	for _, s := range sources {
		if s.Table != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

func messageNames(sources []Source) []string {
	var names []string
	for _, s := range sources {
		if s.Table == nil {
			names = append(names, s.Name)
		}
	}
	return names
}

func tablesOf(sources []Source) []pgx.Identifier {
	var tables []pgx.Identifier
	for _, s := range sources {
		if s.Table != nil {
			tables = append(tables, s.Table)
		}
	}
	return tables
}

func quoted(tables []pgx.Identifier) []string {
	var names []string
	for _, table := range tables {
		names = append(names, table.Sanitize())
	}
	return names
}
