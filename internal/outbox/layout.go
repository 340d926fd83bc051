package outbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/slab"
)

// A Layout knows at which index of a row each part of an event stands. It belongs to one description of
// the table; after another Relation message make a new one. It does not change, so any number of
// goroutines may use it.
type Layout struct {
	source  *Source
	columns []string

	// Where the parts of an event stand.
	id, typ, version, aggregateType, aggregateID field
	key, topic, revision, payload, headers, time field
	published                                    field
	row                                          []int // of the primary key
	payloadType                                  event.PayloadType
	added                                        []addedHeader // by name

	warnings []string
}

// Layout finds the columns by name, as a Relation message lists them. Columns that mean nothing to
// walpost are ignored; a missing one that is required or mapped is an error that names it.
//
// It takes the event id for the primary key. Table.Layout knows better: use it where rows are marked.
func (s *Source) Layout(columns []string) (*Layout, error) { return s.layout(columns, nil) }

// part is a role with the field that has it.
type part struct {
	role
	*field
	required, path bool
}

// parts are all of them. Payload and headers come first, because a path may lead into them.
func (l *Layout) parts() []part {
	return []part{
		{payloadRole, &l.payload, true, false},
		{headersRole, &l.headers, false, false},
		{publishedRole, &l.published, false, false},
		{idRole, &l.id, true, true},
		{typeRole, &l.typ, true, true},
		{versionRole, &l.version, false, true},
		{aggregateTypeRole, &l.aggregateType, false, true},
		{aggregateIDRole, &l.aggregateID, false, true},
		{keyRole, &l.key, false, true},
		{topicRole, &l.topic, false, true},
		{revisionRole, &l.revision, false, true},
		{timeRole, &l.time, false, true},
	}
}

func (s *Source) layout(columns, primaryKey []string) (*Layout, error) {
	l := &Layout{source: s, columns: columns}
	for _, p := range l.parts() {
		if err := l.find(p); err != nil {
			return nil, err
		}
	}
	if !l.key.there() && !l.aggregateID.there() {
		l.warnings = append(l.warnings, fmt.Sprintf("source %q: %s has neither a partition_key nor an aggregate id: all its events share one key and are delivered one at a time; map columns.key", s.Name, s.relation()))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		at := slices.Index(columns, s.Headers[name])
		if at < 0 {
			return nil, s.noMapped("headers."+name, s.Headers[name], columns)
		}
		l.added = append(l.added, addedHeader{name, at})
	}
	if len(primaryKey) == 0 {
		l.row = []int{l.id.at}
	}
	for _, name := range primaryKey {
		at := slices.Index(columns, name)
		if at < 0 {
			return nil, fmt.Errorf("source %q: primary key column %q of %s is not published: a row could not be marked; take the column list off the publication", s.Name, name, s.relation())
		}
		l.row = append(l.row, at)
	}
	return l, nil
}

// noColumnError says that none of the columns has what every event needs, or that the one is gone which has had it so far.
type noColumnError struct {
	source *Source
	role   role
	was    string // the column or path by which it has been known; "" for none
}

func (e *noColumnError) Error() string {
	if e.was != "" {
		return fmt.Sprintf("source %q: column %q of %s has been the event's %s so far, and there is none of that name any more: rename it back, or map columns.%s to what has taken its place%s",
			e.source.Name, e.was, e.source.relation(), e.role.option, e.role.option, e.role.orNone())
	}
	return fmt.Sprintf("source %q: no column of %s is known for the event %s: tried %s; map it with columns.%s",
		e.source.Name, e.source.relation(), e.role.option, strings.Join(e.role.names, ", "), e.role.option)
}

// find fills the field of a part. A column that was mapped must be there, and one that is required, too. One that was found
// by its name stays what it is: an event must not become another one because its table gets or loses a column.
func (l *Layout) find(p part) error {
	p.at = -1
	switch mapped := p.mapped(&l.source.Columns); {
	case mapped == noColumn && p.orNone() != "" && !slices.Contains(l.columns, noColumn):
		return nil
	case mapped != "":
		return l.findMapped(p, mapped)
	}
	known, ok := l.source.knownFor(p.role)
	if ok {
		switch {
		case known == "", l.findMapped(p, known) == nil:
			l.warnOfBetterNames(p, known)
			return nil
		case p.option == publishedRole.option: // rows can be marked that are published without it; Inspect refuses the rest
			p.at = -1
			return nil
		case p.change == refused:
			return &noColumnError{source: l.source, role: p.role, was: known}
		}
		p.steps = nil
	}
	for _, name := range p.names {
		if p.at = slices.Index(l.columns, name); p.at >= 0 {
			return nil
		}
	}
	if p.required || known != "" && p.change == toAnotherName {
		return &noColumnError{source: l.source, role: p.role, was: known}
	}
	return nil
}

// noColumn is what a part is mapped to that the events are not to have, although the table has a column for it.
const noColumn = "none"

// orNone is what to write for a part that is not to be had; "" for those that every event needs.
func (r role) orNone() string {
	if r.option == idRole.option || r.option == typeRole.option || r.option == payloadRole.option || r.option == orderRole.option {
		return ""
	}
	return " (or to " + noColumn + ")"
}

// warnOfBetterNames says which columns are not used that would have been found first, had they been there from the start.
func (l *Layout) warnOfBetterNames(p part, known string) {
	for _, name := range p.names {
		if name == known {
			return
		}
		if slices.Contains(l.columns, name) {
			so := fmt.Sprintf("has been column %q so far", known)
			if known == "" {
				so = "was made without one so far"
			}
			l.warnings = append(l.warnings, fmt.Sprintf("source %q: column %q of %s is not used: the event's %s %s, and stays so; map columns.%s to one of them",
				l.source.Name, name, l.source.relation(), p.option, so, p.option))
			return
		}
	}
}

// knownFor returns the column or path by which a part has been found so far; "" for a part that the events did not have.
func (s *Source) knownFor(r role) (column string, ok bool) {
	switch {
	case s.Known == nil:
		return "", false
	case r.option == idRole.option:
		return s.Known.ID, s.Known.ID != ""
	case r.option == timeRole.option:
		return s.Known.Time, true
	}
	column, ok = s.Known.Columns[r.option]
	return column, ok
}

// findMapped fills the field of a part that is a certain column, or a path.
func (l *Layout) findMapped(p part, mapped string) error {
	if p.at = slices.Index(l.columns, mapped); p.at >= 0 {
		return nil
	}
	column, path, isPath := strings.Cut(mapped, ".")
	if isPath && p.path {
		p.steps = strings.Split(path, ".")
		// "payload" and "headers" also mean whatever column was found to be that.
		if p.at = slices.Index(l.columns, column); p.at < 0 && column == payloadRole.option {
			p.at = l.payload.at
		} else if p.at < 0 && column == headersRole.option {
			p.at = l.headers.at
		}
	}
	if p.at < 0 || slices.Contains(p.steps, "") {
		return l.source.noMapped("columns."+p.option, mapped, l.columns)
	}
	return nil
}

func (s *Source) noMapped(key, mapped string, columns []string) error {
	return fmt.Errorf("source %q: %s is %q, but %s has no such published column: it has %s",
		s.Name, key, mapped, s.relation(), strings.Join(columns, ", "))
}

// Warnings are sentences for a person about what works, but surely is not meant.
func (l *Layout) Warnings() []string { return l.warnings }

// Published reports whether a row came with its published column set. Such a row is no event: an update
// that moves a row to another partition arrives as an insert.
func (l *Layout) Published(values [][]byte) bool {
	// A boolean's text is "t" or "f"; a time has none of these.
	published := l.published.of(values)
	return published != nil && string(published) != "f"
}

// Event makes an event of a row; values are in the order of the layout's columns, nil is SQL NULL. It
// copies what it keeps. Position, CommittedAt and XID are left to the caller.
//
// It never fails: a row that is no valid event says so in Invalid, and has an id made from its primary
// key if its own cannot be one.
func (l *Layout) Event(values [][]byte) *event.Event { return l.EventOn(nil, values) }

// A Shelf is where many events are made, in groups; see package slab. It is not safe for concurrent use.
type Shelf struct {
	events slab.Of[event.Event]
	texts  slab.Bytes
}

// EventOn is Event for one of many: it costs a fraction of an allocation.
func (l *Layout) EventOn(shelf *Shelf, values [][]byte) *event.Event {
	payload, headers := l.payload.of(values), l.headers.of(values)
	mixed := true // with the further columns
	if len(l.added) > 0 {
		headers, mixed = l.addHeaders(headers, values)
	}
	e := l.event(shelf, l.textsOf(values), payload, headers)
	e.Occurrence = occurrenceOf(e.OccurredAt, e.Type, e.Payload)
	checkNames(e)
	if !mixed {
		e.Invalid = strings.TrimPrefix(e.Invalid+"; the headers are no JSON object, so that no further column can stand in them", "; ")
	}
	l.source.checkSchema(e)
	return e
}

// Large makes an event of a row that is too large to be kept. It has neither payload nor headers, and of other texts
// those of at most kept bytes. What it is known by is that of the whole row, which is found by it.
func (l *Layout) Large(values [][]byte, kept int) *event.Event {
	texts := l.textsOf(values)
	for i, text := range texts {
		if len(text) > kept {
			texts[i] = nil
		}
	}
	e := l.event(nil, texts, nil, nil)
	e.Occurrence = occurrenceOf(e.OccurredAt, e.Type, l.payload.of(values))
	checkNames(e)
	return e
}

// texts are what an event has apart from payload and headers.
type texts [10][]byte

func (l *Layout) textsOf(values [][]byte) texts {
	key, aggregateID := l.key.of(values), l.aggregateID.of(values)
	if len(key) == 0 {
		key = aggregateID
	}
	row := values[l.row[0]]
	if len(l.row) > 1 {
		row = l.compositeRow(values)
	}
	return texts{
		l.id.of(values), l.typ.of(values), l.version.of(values),
		l.aggregateType.of(values), aggregateID, key,
		l.topic.of(values), l.revision.of(values), l.time.of(values), row,
	}
}

// event makes an event that keeps nothing of what it is made of. Its names are not checked.
func (l *Layout) event(shelf *Shelf, texts texts, payload, headers []byte) *event.Event {
	body := len(payload) + len(headers)
	size := body
	for _, text := range texts {
		size += len(text)
	}
	e := shelf.event(size)
	e.Source = l.source.Name
	// In one piece of memory, which no one changes any more: that is what makes strings of it. The body of a
	// large event has its own, because a name may be kept for longer: a key as long as it is in debt.
	large := size >= slab.Large && body > 0
	first := size
	if large {
		first -= body
	}
	all := shelf.bytes(first)
	copied := func(from []byte) []byte {
		if from == nil {
			return nil
		}
		n := copy(all, from)
		kept := all[:n:n]
		all = all[n:]
		return kept
	}
	for i, field := range [...]*string{
		&e.ID, &e.Type, &e.Version, &e.AggregateType, &e.AggregateID, &e.Key, &e.Topic, &e.Revision, &e.OccurredAt, &e.Row,
	} {
		*field = unsafe.String(unsafe.SliceData(copied(texts[i])), len(texts[i]))
	}
	if large {
		all = shelf.bytes(body)
	}
	e.Payload, e.Headers, e.PayloadType = copied(payload), copied(headers), l.payloadType
	return e
}

// event and bytes are of a shelf, or alone without one.
func (s *Shelf) event(size int) *event.Event {
	if s == nil {
		return new(event.Event)
	}
	return s.events.New(size)
}

func (s *Shelf) bytes(n int) []byte {
	if s == nil {
		return make([]byte, n)
	}
	return s.texts.TakeBytes(n)
}

// compositeRow writes a primary key of several columns as a JSON array of their texts; keyValues reads it.
func (l *Layout) compositeRow(values [][]byte) []byte {
	parts := make([]string, len(l.row))
	for i, at := range l.row {
		parts[i] = string(values[at])
	}
	row, _ := json.Marshal(parts) // strings always can be
	return row
}

// relation names the table for people.
func (s *Source) relation() string { return s.Schema + "." + s.Table }

// uses reports whether an event needs the column at an index.
func (l *Layout) uses(at int) bool {
	for _, p := range l.parts() {
		if p.at == at && p.option != publishedRole.option {
			return true
		}
	}
	return slices.Contains(l.row, at) || slices.ContainsFunc(l.added, func(h addedHeader) bool { return h.at == at })
}
