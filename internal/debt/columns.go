package debt

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
)

// columns are deliveries by column, as arguments of unnest. The first group is what every delivery has,
// the second what only a copy has.
type columns struct {
	sources, ids, occurrences []string
	epochs                    []int32
	commits                   []string
	ordinals                  []int64
	madeUp, inTableOrder      []bool
	bounds                    []string
	types, keys, rows         []string
	xids                      []int64
	committed                 []*time.Time
	attempts                  []int32
	next, firstFail, lastFail []*time.Time
	errors, invalid           []string
	lost                      []bool
	sizes                     []int32

	versions, aggregateTypes, aggregateIDs, topics, revisions, times, payloadTypes []string
	payloads, headers                                                              []*string
}

func (c *columns) add(o *lane.Owed) {
	e := o.Event
	c.sources = append(c.sources, e.Source)
	c.ids = append(c.ids, e.ID)
	c.occurrences = append(c.occurrences, e.Occurrence)
	c.epochs = append(c.epochs, e.Position.Epoch)
	c.commits = append(c.commits, e.Position.Commit.String())
	c.ordinals = append(c.ordinals, e.Position.Ordinal)
	c.madeUp = append(c.madeUp, e.Bound != 0)
	c.inTableOrder = append(c.inTableOrder, o.InTableOrder)
	c.bounds = append(c.bounds, e.LastOf().Commit.String())
	c.types = append(c.types, store.Storable(e.Type))
	c.keys = append(c.keys, store.Storable(e.Key))
	c.rows = append(c.rows, e.Row)
	c.xids = append(c.xids, int64(e.XID))
	c.committed = append(c.committed, known(e.CommittedAt))
	c.attempts = append(c.attempts, int32(o.Attempts))
	c.next = append(c.next, known(o.NextAttempt))
	c.firstFail = append(c.firstFail, known(o.FirstFailure))
	c.lastFail = append(c.lastFail, known(o.LastFailure))
	c.errors = append(c.errors, reason(o.Err))
	c.invalid = append(c.invalid, reason(e.Invalid))
	c.lost = append(c.lost, e.Lost)
	c.sizes = append(c.sizes, int32(e.Size()))
}

func (c *columns) addCopy(e *event.Event) {
	c.versions = append(c.versions, store.Storable(e.Version))
	c.aggregateTypes = append(c.aggregateTypes, store.Storable(e.AggregateType))
	c.aggregateIDs = append(c.aggregateIDs, store.Storable(e.AggregateID))
	c.topics = append(c.topics, store.Storable(e.Topic))
	c.revisions = append(c.revisions, store.Storable(e.Revision))
	c.times = append(c.times, store.Storable(e.OccurredAt))
	c.payloadTypes = append(c.payloadTypes, e.PayloadType.String())
	c.payloads = append(c.payloads, body(e.Payload))
	c.headers = append(c.headers, body(e.Headers))
}

func (c *columns) args() []any {
	return []any{c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.inTableOrder, c.bounds, c.types, c.keys, c.rows, c.xids, c.committed,
		c.attempts, c.next, c.firstFail, c.lastFail, c.errors, c.invalid, c.lost, c.sizes}
}

func (c *columns) copyArgs() []any {
	return []any{c.versions, c.aggregateTypes, c.aggregateIDs, c.topics, c.revisions, c.times, c.payloadTypes, c.payloads, c.headers}
}

// typed is a column of walpost.owed and the type of its argument. They stand in the order of args and
// copyArgs. pgx knows no pg_lsn[], so positions go as text.
type typed struct{ name, typ string }

var (
	ofEach = []typed{
		{"source", "text"}, {"event_id", "text"}, {"occurrence", "text"}, {"epoch", "int"}, {"commit_lsn", "text"}, {"ordinal", "bigint"},
		{"made_up", "bool"}, {"in_table_order", "bool"}, {"bound", "text"},
		{"event_type", "text"}, {"key", "text"}, {"row_id", "text"}, {"xid", "bigint"}, {"committed_at", "timestamptz"},
		{"attempts", "int"}, {"next_attempt", "timestamptz"}, {"first_failure", "timestamptz"}, {"last_failure", "timestamptz"},
		{"error", "text"}, {"invalid", "text"}, {"lost", "bool"}, {"size", "int"},
	}
	ofCopies = []typed{
		{"version", "text"}, {"aggregate_type", "text"}, {"aggregate_id", "text"}, {"topic", "text"}, {"revision", "text"},
		{"occurred_at", "text"}, {"payload_type", "text"}, {"payload", "text"}, {"headers", "text"},
	}

	leaves              = recordUnless("ON CONFLICT DO NOTHING")
	moves               = recordUnless(becomesPlaced)
	recordUnmarked      = insert(ofEach, false, true) + "\nON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET mark = true"
	recordDeadReference = insert(ofEach, false, false) + becomesDead + thisRow
	recordDeadCopy      = insert(slices.Concat(ofEach, ofCopies), true, false) + becomesDead + replaces(ofCopies) + ", copied = true" + thisRow
)

// onConflict are the statements that record references and copies, and what they do with what is recorded already.
type onConflict struct{ references, copies string }

func recordUnless(conflict string) onConflict {
	return onConflict{insert(ofEach, false, false) + "\n" + conflict, insert(slices.Concat(ofEach, ofCopies), true, false) + "\n" + conflict}
}

// becomesPlaced gives what waits its place in the order of the table.
const becomesPlaced = `
	ON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET
	    epoch = excluded.epoch, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal, bound = excluded.bound,
	    made_up = excluded.made_up, in_table_order = excluded.in_table_order
	WHERE owed.state = 'waiting' AND (owed.row_id = excluded.row_id OR '' IN (owed.row_id, excluded.row_id))`

// thisRow lets the dead letter of another row with the same identity change nothing.
var thisRow = "\n\tWHERE NOT " + otherRow("owed", "excluded")

// otherRow is the condition under which walpost.owed, named o, has another row than u, both with one identity. Messages have
// no rows: there positions tell, where both are those of commits of one server.
func otherRow(o, u string) string {
	return fmt.Sprintf(`(%[1]s.row_id <> %[2]s.row_id AND '' NOT IN (%[1]s.row_id, %[2]s.row_id)
		OR %[1]s.row_id = '' AND %[2]s.row_id = '' AND NOT %[1]s.made_up AND NOT %[2]s.made_up AND %[1]s.epoch = %[2]s.epoch
		AND (%[1]s.commit_lsn, %[1]s.ordinal) <> (%[2]s.commit_lsn::pg_lsn, %[2]s.ordinal))`, o, u)
}

// becomesDead keeps the position, and whatever copy there is.
const becomesDead = `
	ON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET state = 'dead', next_attempt = NULL, mark = false,
	    attempts = excluded.attempts, first_failure = excluded.first_failure, last_failure = excluded.last_failure,
	    error = excluded.error, invalid = excluded.invalid, lost = excluded.lost`

// insert writes the rows that its arguments hold by column; $1 to $3 are slot, subscriber and state.
func insert(columns []typed, copied, mark bool) string {
	var names, values, arrays []string
	for i, column := range columns {
		names = append(names, column.name)
		values = append(values, "u."+column.name)
		if column.name == "commit_lsn" || column.name == "bound" {
			values[i] += "::pg_lsn"
		}
		arrays = append(arrays, "$"+strconv.Itoa(4+i)+"::"+column.typ+"[]")
	}
	return "INSERT INTO walpost.owed (slot, subscriber, state, copied, mark, " + strings.Join(names, ", ") + ")\n" +
		"SELECT $1, $2, $3, " + strconv.FormatBool(copied) + ", " + strconv.FormatBool(mark) + ", " + strings.Join(values, ", ") + "\n" +
		"FROM unnest(" + strings.Join(arrays, ", ") + ") AS u(" + strings.Join(names, ", ") + ")"
}

func replaces(columns []typed) string {
	var sql strings.Builder
	for _, column := range columns {
		sql.WriteString(", " + column.name + " = excluded." + column.name)
	}
	return sql.String()
}

// byReference reports of an event whether it is recorded without a copy.
func (s *Store) byReference() func(*event.Event) bool {
	tables := s.current()
	return func(e *event.Event) bool {
		table := tables[e.Source]
		return e.Row != "" && table != nil && table.Source.Ours && table.Marks()
	}
}
