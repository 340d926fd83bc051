// Package outbox is where the halves of walpost meet: how an event becomes a row, and a row an event. It
// holds all SQL on the outbox table and knows whose columns mean what; no one else does. It decides
// nothing about deliveries. Rows come from package pgoutput; what becomes of an event is told in package
// dispatch.
package outbox

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/event"
)

// A Source is where events come from: a table, or logical messages of one prefix.
type Source struct {
	// Name is the source's name in the configuration; events carry it.
	Name string
	// Schema and Table name the outbox table, "" for a source of messages.
	Schema, Table string
	// Messages is the prefix given to pg_logical_emit_message, "" for a table.
	Messages string
	// Columns says which column is what where the well-known names do not.
	Columns Columns
	// Headers are further columns that stand in the headers of an event, by the name of the header.
	Headers map[string]string
	// Mark lets the relay set the published column, where the table has one.
	Mark bool
	// RepairAll sends all rows that the table has after the slot was lost, where nothing marks those that
	// were delivered; else such a repair is refused.
	RepairAll bool
	// Ours says that no one but walpost's own retention deletes rows, so that debt may point to them.
	Ours bool
	// Deleted says that the service deletes each row in the transaction that inserts it: the table is always empty,
	// there is nothing to mark, and the WAL alone has the events.
	Deleted bool
	// Retention is how long a published row stays; 0 keeps it for ever.
	Retention time.Duration
	// JSONSchema is what payloads have to fit; nil takes all. What does not is an invalid event.
	JSONSchema PayloadSchema
	// SchemaFile is where the configuration has the schema, "" for none.
	SchemaFile string
	// TimeZone is the zone of a time column whose type has none, by its IANA name; "" is UTC.
	TimeZone string
	// Known are the columns by which the events of the table have been known so far, nil before the first; see KnownBy.
	Known *KnownBy
}

// KnownBy are the columns, or paths, by which the events of a table are known. What was found by name stays what it was,
// although the table has got a column with a better name or another primary key since: events that are open or owed are
// compared by it, rows are found by it, and an event has the same key and payload from the stream and from the table.
// Columns of the source, where it is set, comes first.
type KnownBy struct {
	ID   string
	Time string   // "" is none
	Key  []string // by which a row is found
	// Columns are those of the other parts that were found by name, by the part's option; "" is none.
	Columns map[string]string
}

// KnownAs returns the source with the columns by which its events have been known so far.
func (s *Source) KnownAs(by KnownBy) *Source {
	known := *s
	known.Known = &by
	return &known
}

// Columns maps what an event needs to columns of a table. An empty field means the first well-known name
// that the table has; a field that is set must be there, or be "none" for what the events are not to have. All but Payload, Headers, Order and Published may be a path
// into a JSON column, "payload.user_id".
type Columns struct {
	ID            string // event_id, id, seq
	Type          string // event_type, type
	Version       string // event_version, version
	AggregateType string // aggregate_type, aggregatetype
	AggregateID   string // aggregate_id, aggregateid
	// Key is by default partition_key, else the aggregate id, else one key for all events.
	Key      string
	Topic    string // topic
	Revision string // revision
	Payload  string // payload, data
	Headers  string // headers, metadata
	Time     string // occurred_at, created_at
	// Order are the columns that a repair reads rows by: an integer id or seq, else the time with the id.
	Order []string
	// Published is NULL, or false, as long as the row waits: published_at, delivered.
	Published string
}

// A PayloadSchema looks at payloads; fulfilled by package eventschema. It is safe for concurrent use.
type PayloadSchema interface {
	// Check returns an error that says why a payload does not fit; nil is SQL NULL.
	Check(payload []byte) error
}

// checkSchema looks at an event whose names are fine.
func (s *Source) checkSchema(e *event.Event) {
	if s.JSONSchema == nil || e.Invalid != "" {
		return
	}
	body, err := e.Body()
	if err == nil {
		err = s.JSONSchema.Check(body)
	}
	if err != nil {
		e.Invalid = err.Error()
	}
}

// DB is what a statement runs on: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// role is one thing that an event, or the work on its row, takes from a column.
type role struct {
	option string // its name in the configuration, columns.<option>
	mapped func(*Columns) string
	names  []string // well-known names, best first
	change change   // what may become of it when its column is gone
}

// change is what may become of a part that was found by the name of its column, when the table has lost that column.
type change int

const (
	refused       change = iota // events would be known, ordered or marked in another way
	toAnotherName               // another well-known name may take its place
	anything                    // events may be without it from then on
)

var (
	idRole            = role{"id", func(c *Columns) string { return c.ID }, []string{"event_id", "id", "seq"}, refused}
	typeRole          = role{"type", func(c *Columns) string { return c.Type }, []string{"event_type", "type"}, toAnotherName}
	versionRole       = role{"version", func(c *Columns) string { return c.Version }, []string{"event_version", "version"}, anything}
	aggregateTypeRole = role{"aggregate_type", func(c *Columns) string { return c.AggregateType }, []string{"aggregate_type", "aggregatetype"}, anything}
	aggregateIDRole   = role{"aggregate_id", func(c *Columns) string { return c.AggregateID }, []string{"aggregate_id", "aggregateid"}, toAnotherName}
	keyRole           = role{"key", func(c *Columns) string { return c.Key }, []string{"partition_key"}, refused}
	topicRole         = role{"topic", func(c *Columns) string { return c.Topic }, []string{"topic"}, anything}
	revisionRole      = role{"revision", func(c *Columns) string { return c.Revision }, []string{"revision"}, anything}
	payloadRole       = role{"payload", func(c *Columns) string { return c.Payload }, []string{"payload", "data"}, toAnotherName}
	headersRole       = role{"headers", func(c *Columns) string { return c.Headers }, []string{"headers", "metadata"}, anything}
	timeRole          = role{"time", func(c *Columns) string { return c.Time }, []string{"occurred_at", "created_at"}, refused}
	orderRole         = role{"order", func(c *Columns) string { return strings.Join(c.Order, ", ") }, []string{"id", "seq"}, anything}
	publishedRole     = role{"published", func(c *Columns) string { return c.Published }, []string{"published_at", "delivered"}, refused}
)
