package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// A Table is what the database says about a source's table: what Mark, Unpublished and Clean need to
// know without a Relation message. It does not change; after the table was altered, Inspect again.
type Table struct {
	Source *Source
	OID    uint32
	// Columns are the columns that a stream can carry, in order: all but generated ones.
	Columns []string
	// Key is the primary key, whose text is the Row of an event; the event id where there is none.
	Key []string
	// Published is the column that Mark sets, "" if the table has none.
	Published string
	// OnMissing is called with how many rows that were to be marked are gone, and in whose place stands another event,
	// because an id or a primary key came again; nil is not called. Set it before the table is used.
	OnMissing func(gone, replaced int)

	layout   *Layout // over Columns
	keyTypes []string
	order    []string      // columns that a repair reads by
	ordered  bool          // they are the table's own order; else the time, which the rows of a transaction share
	written  string        // the column of that time, "" if there is none or they are ordered
	place    []placeColumn // the same, made total by the primary key
	types    []string      // of Columns
	bases    []string      // of Columns; see column.base
	timed    bool          // there is a time column, of a date type
	encoding string        // of the database
	boolean  bool          // Published is a boolean and not a time
	notNull  bool          // Published cannot be NULL
	at       string        // the time that goes with a boolean Published, "" if there is none
	attempts bool          // there is an integer column attempts
	rowByRow bool          // see RowByRow
	warnings []string
}

// column is a row of pg_attribute.
type column struct {
	name, typ string
	base      string // its type without a schema, of a domain the one below it
	category  string // pg_type.typcategory
	notNull   bool
	generated bool
	key       int // place in the primary key from 1, 0 for none
}

// Inspect looks the source's table up. A table that is missing, lacks a column that is required or
// mapped, or of which a generated column would be used is an error that says what to do.
func (s *Source) Inspect(ctx context.Context, db DB) (*Table, error) {
	found, err := s.find(ctx, db)
	if err == nil {
		err = found.problem
	}
	if err != nil {
		return nil, err
	}
	t := &Table{Source: s, OID: found.oid, encoding: found.encoding}
	columns, err := s.attributes(ctx, db, t.OID)
	if err != nil {
		return nil, err
	}
	if err := s.refuseGenerated(columns); err != nil {
		return nil, err
	}
	if err := t.understand(columns); err != nil {
		return nil, err
	}
	t.Source = s.KnownAs(t.KnownBy()) // the next inspection finds the same
	t.layout.source = t.Source
	return t, nil
}

// foundTable is where the source's table is, or why it cannot be one.
type foundTable struct {
	oid      uint32
	encoding string // of the database
	problem  error
}

func (s *Source) find(ctx context.Context, db DB) (found foundTable, err error) {
	var kind string
	err = db.QueryRow(ctx, `
		SELECT c.oid, c.relkind::text, pg_catalog.getdatabaseencoding()::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, s.Schema, s.Table).Scan(&found.oid, &kind, &found.encoding)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		found.problem, err = fmt.Errorf("source %q: there is no table %s in this database: create it, or correct the source's table", s.Name, s.relation()), nil
	case err != nil:
		err = fmt.Errorf("source %q: look up table %s: %w", s.Name, s.relation(), err)
	case kind != "r" && kind != "p": // ordinary, partitioned
		found.problem = fmt.Errorf("source %q: %s is no table (relkind %q): only tables can be published", s.Name, s.relation(), kind)
	}
	return found, err
}

func (s *Source) attributes(ctx context.Context, db DB, table uint32) ([]column, error) {
	rows, err := db.Query(ctx, `
		SELECT a.attname::text, quote_ident(n.nspname) || '.' || quote_ident(y.typname), coalesce(b.typname, y.typname)::text, y.typcategory::text,
		       a.attnotnull, a.attgenerated <> '',
		       coalesce(array_position(i.indkey::int2[], a.attnum) - array_lower(i.indkey::int2[], 1) + 1, 0)
		FROM pg_attribute a
		JOIN pg_type y ON y.oid = a.atttypid
		JOIN pg_namespace n ON n.oid = y.typnamespace
		LEFT JOIN pg_type b ON b.oid = y.typbasetype
		LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
		WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum`, table)
	if err != nil {
		return nil, fmt.Errorf("source %q: read columns of %s: %w", s.Name, s.relation(), err)
	}
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (column, error) {
		var c column
		err := row.Scan(&c.name, &c.typ, &c.base, &c.category, &c.notNull, &c.generated, &c.key)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("source %q: read columns of %s: %w", s.Name, s.relation(), err)
	}
	return columns, nil
}

// refuseGenerated finds out what would be used if generated columns counted, and refuses it: the server
// leaves them out of the stream, so another column, or none, would silently take the place.
func (s *Source) refuseGenerated(columns []column) error {
	all, err := s.layout(namesOf(columns), nil)
	if err != nil {
		return err
	}
	for _, c := range all.parts() {
		if c.at >= 0 && columns[c.at].generated {
			return fmt.Errorf("source %q: column %q of %s is the event's %s, but it is generated, and Postgres leaves generated columns out of the stream: make it an ordinary column, or map columns.%s to another one, or to a path as payload.user_id",
				s.Name, columns[c.at].name, s.relation(), c.option, c.option)
		}
	}
	for _, h := range all.added {
		if columns[h.at].generated {
			return fmt.Errorf("source %q: column %q of %s is to be the header %s, but it is generated, and Postgres leaves generated columns out of the stream: make it an ordinary column, or take it out of headers",
				s.Name, columns[h.at].name, s.relation(), h.name)
		}
	}
	return nil
}

// understand fills t from the table's columns.
func (t *Table) understand(columns []column) error {
	s := t.Source
	columns = slices.DeleteFunc(columns, func(c column) bool { return c.generated })
	t.Columns = namesOf(columns)

	key := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.key == 0 })
	slices.SortFunc(key, func(a, b column) int { return a.key - b.key })
	if known := s.knownKey(columns); known != nil {
		key = known
	}
	var err error
	if t.layout, err = s.layout(t.Columns, namesOf(key)); err != nil {
		return err
	}
	t.warnings = t.layout.Warnings()
	if was, ok := s.knownFor(publishedRole); ok && was != "" && s.Columns.Published == "" && !t.layout.published.there() {
		return &noColumnError{source: s, role: publishedRole, was: was}
	}
	if len(key) == 0 {
		if t.layout.id.steps != nil {
			return fmt.Errorf("source %q: %s has no primary key, and columns.id is a path, so that nothing finds a row again: add a primary key", s.Name, s.relation())
		}
		key = []column{columns[t.layout.id.at]}
		t.warnings = append(t.warnings, fmt.Sprintf("source %q: %s has no primary key: its rows are found by %q, which is slow without a unique index, and other publications may forbid updates; add a primary key", s.Name, s.relation(), key[0].name))
	}
	for _, c := range key {
		t.Key = append(t.Key, c.name)
		t.keyTypes = append(t.keyTypes, c.typ)
	}

	if t.layout.published.there() {
		published := columns[t.layout.published.at]
		t.Published, t.notNull = published.name, published.notNull
		switch published.category { // manual, "pg_type": typcategory codes
		case "B":
			t.boolean = true
			if at := t.Published + "_at"; slices.Contains(t.Columns, at) {
				t.at = at
			}
		case "D":
		default:
			return fmt.Errorf("source %q: published column %q of %s has type %s: it must be a timestamp or a boolean; map columns.published", s.Name, t.Published, s.relation(), published.typ)
		}
	}
	t.attempts = slices.ContainsFunc(columns, func(c column) bool { return c.name == "attempts" && c.category == "N" })
	for _, c := range columns {
		t.types, t.bases = append(t.types, c.typ), append(t.bases, c.base)
	}
	switch columns[t.layout.payload.at].base {
	case "json", "jsonb":
	case "bytea":
		t.layout.payloadType = event.Binary
	default:
		t.layout.payloadType = event.Text
	}
	if err := t.checkPaths(columns); err != nil {
		return err
	}
	t.timed = t.layout.time.there() && t.layout.time.steps == nil && columns[t.layout.time.at].category == "D"
	if err := t.findOrder(columns); err != nil {
		return err
	}
	t.findPlace(columns)
	return nil
}

// knownKey returns the columns by which rows have been found so far, nil if they are not all there any more.
func (s *Source) knownKey(columns []column) []column {
	if s.Known == nil {
		return nil
	}
	var key []column
	for _, name := range s.Known.Key {
		at := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
		if at < 0 {
			return nil
		}
		key = append(key, columns[at])
	}
	return key
}

// KnownBy returns the columns by which the events of the table are known.
func (t *Table) KnownBy() KnownBy {
	by := KnownBy{ID: t.nameOf(t.layout.id), Time: t.nameOf(t.layout.time), Key: t.Key, Columns: make(map[string]string)}
	for _, p := range t.layout.parts() {
		switch name := t.nameOf(*p.field); {
		case p.option == idRole.option, p.option == timeRole.option, p.mapped(&t.Source.Columns) != "":
		case name != "":
			by.Columns[p.option] = name
		case p.option == keyRole.option && t.layout.aggregateID.there(): // which is the key then
			by.Columns[p.option] = ""
		}
	}
	if len(t.Source.Columns.Order) == 0 {
		by.Columns[orderRole.option] = ""
		if t.ordered {
			by.Columns[orderRole.option] = t.order[0]
		}
	}
	if len(by.Columns) == 0 {
		by.Columns = nil // as it is read again
	}
	return by
}

// nameOf is the column of a field, or its path; "" for a field that is not there.
func (t *Table) nameOf(f field) string {
	if !f.there() {
		return ""
	}
	return strings.Join(append([]string{t.Columns[f.at]}, f.steps...), ".")
}

// checkPaths finds out how SQL reads what a path leads to. Of what an event is known by it must read what the stream's
// side reads, so that a text with JSON in it is not enough there: Postgres refuses to look into one that is none.
func (t *Table) checkPaths(columns []column) error {
	for _, p := range t.layout.parts() {
		if p.steps == nil {
			continue
		}
		c := columns[p.at]
		identifies := slices.Contains([]string{idRole.option, typeRole.option, timeRole.option}, p.option)
		switch {
		case c.base == "json":
			p.asWritten = true
			if identifies && t.encoding != "UTF8" {
				return fmt.Errorf("source %q: columns.%s leads into column %q of %s, of type json, and the database is no UTF8 one, where Postgres cannot look into every json: make the column jsonb, or map columns.%s to a column",
					t.Source.Name, p.option, c.name, t.Source.relation(), p.option)
			}
		case c.base == "jsonb" || !identifies:
		default:
			return fmt.Errorf("source %q: columns.%s leads into column %q of %s, of type %s: an event is known by its %s in SQL as well, which can look into json and jsonb alone: change the type of the column, or map columns.%s to a column",
				t.Source.Name, p.option, c.name, t.Source.relation(), c.typ, p.option, p.option)
		}
	}
	return nil
}

// findOrder chooses what a repair reads by: an integer that grows with each row, else the time.
func (t *Table) findOrder(columns []column) error {
	for _, name := range t.Source.Columns.Order {
		if !slices.Contains(t.Columns, name) {
			return t.Source.noMapped("columns.order", name, t.Columns)
		}
		t.order, t.ordered = append(t.order, name), true
	}
	if t.ordered {
		return nil
	}
	names := orderRole.names
	if known, ok := t.Source.knownFor(orderRole); ok && (known == "" || slices.Contains(t.Columns, known)) {
		names = []string{known}
	}
	for _, name := range names {
		at := slices.Index(t.Columns, name)
		if at >= 0 && slices.Contains([]string{"pg_catalog.int2", "pg_catalog.int4", "pg_catalog.int8"}, columns[at].typ) {
			t.order, t.ordered = []string{name}, true
			return nil
		}
	}
	if t.written = t.writtenColumn(); t.written != "" {
		t.order = append(t.order, t.written)
	}
	if t.layout.id.steps == nil {
		t.order = append(t.order, t.Columns[t.layout.id.at])
	}
	return nil
}

// writtenColumn is the column that tells when a row was written: the event's time, or, where that is a path, one with a
// well-known name.
func (t *Table) writtenColumn() string {
	if t.layout.time.there() && t.layout.time.steps == nil {
		return t.Columns[t.layout.time.at]
	}
	for _, name := range []string{"created_at", "occurred_at"} {
		if slices.Contains(t.Columns, name) {
			return name
		}
	}
	return ""
}

// Same reports whether the database says the same about a table as before; before may be nil.
func (t *Table) Same(before *Table) bool {
	if before == nil {
		return false
	}
	now, then := *t, *before
	now.OnMissing, then.OnMissing = nil, nil // functions are never equal
	return reflect.DeepEqual(now, then)
}

// Layout finds the columns of a Relation message by name. It knows the primary key, so that the events'
// Row is what Mark wants, and the type of the payload.
func (t *Table) Layout(columns []string) (*Layout, error) {
	l, err := t.Source.layout(columns, t.Key)
	if t.layout == nil { // a table that was not inspected
		return l, err
	}
	if err != nil {
		return nil, t.explainLayout(columns, err)
	}
	l.payloadType = t.layout.payloadType
	known := t.layout.parts()
	for i, p := range l.parts() {
		p.asWritten = known[i].asWritten
	}
	return l, nil
}

// explainLayout says of a layout that the stream's columns do not give which columns of the table it lacks.
func (t *Table) explainLayout(columns []string, err error) error {
	var lacking []string
	for at, name := range t.Columns {
		if t.layout.uses(at) && !slices.Contains(columns, name) {
			lacking = append(lacking, name)
		}
	}
	var missing *noColumnError
	if len(lacking) == 0 || !errors.As(err, &missing) {
		return err
	}
	return fmt.Errorf("source %q: the stream does not carry %s of %s, and so not the event %s: a column list of the publication leaves it out (walpost doctor prints the statement against that), or it was renamed or dropped, or the rows are from before it was added",
		t.Source.Name, strings.Join(lacking, ", "), t.Source.relation(), missing.role.option)
}

// ZonelessTime is the name of the time column where its type has no time zone, so that what it means depends on who
// wrote it; else "".
func (t *Table) ZonelessTime() string {
	if f := t.layout.time; f.there() && f.steps == nil && t.types[f.at] == `pg_catalog."timestamp"` {
		return t.Columns[f.at]
	}
	return ""
}

// momentSQL is the moment that a value of the time column means.
func (t *Table) momentSQL(value string) string {
	if t.ZonelessTime() == "" {
		return "(" + value + ")::timestamptz"
	}
	return "((" + value + ") AT TIME ZONE " + t.zoneSQL() + ")"
}

// atSQL is a moment as the time column would have it, so that an index of the column can be used.
func (t *Table) atSQL(moment string) string {
	if t.ZonelessTime() == "" {
		return moment
	}
	return "(" + moment + "::timestamptz AT TIME ZONE " + t.zoneSQL() + ")"
}

func (t *Table) zoneSQL() string {
	zone := t.Source.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	return "'" + strings.ReplaceAll(zone, "'", "''") + "'"
}

// Marks reports whether rows are to be marked, and can be.
func (t *Table) Marks() bool { return t.Source.Mark && !t.Source.Deleted && t.Published != "" }

// Warnings are sentences for a person about what works, but surely is not meant.
func (t *Table) Warnings() []string { return t.warnings }

// sql is the quoted name of the table.
func (t *Table) sql() string { return t.identifier().Sanitize() }

func (t *Table) identifier() pgx.Identifier { return pgx.Identifier{t.Source.Schema, t.Source.Table} }

// unpublished is the condition for a row, named t, that waits. A bool that cannot be NULL is written so
// that a partial index WHERE NOT delivered is used.
func (t *Table) unpublished() string {
	published := "t." + advice.Quote(t.Published)
	switch {
	case t.boolean && t.notNull:
		return "NOT " + published
	case t.boolean:
		return published + " IS NOT TRUE"
	}
	return published + " IS NULL"
}

func namesOf(columns []column) []string {
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	return names
}

// eachKey writes a part of SQL for each key column, from its quoted name, its number from 1 and its type.
func (t *Table) eachKey(separator string, part func(column string, n int, typ string) string) string {
	var parts []string
	for i, name := range t.Key {
		parts = append(parts, part(advice.Quote(name), i+1, t.keyTypes[i]))
	}
	return strings.Join(parts, separator)
}
