package outbox

import (
	"encoding/json"
	"fmt"
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

	// Indexes into a row, -1 for what the table does not have.
	id, typ, version, aggregateType, aggregateID int
	key, topic, revision, payload, headers, time int
	published                                    int
	row                                          []int // of the primary key
	payloadType                                  event.PayloadType
	path                                         []string // below column key, nil when the column itself is the key

	warnings []string
}

// Layout finds the columns by name, as a Relation message lists them. Columns that mean nothing to
// walpost are ignored; a missing one that is required or mapped is an error that names it.
//
// It takes the event id for the primary key. Table.Layout knows better: use it where rows are marked.
func (s *Source) Layout(columns []string) (*Layout, error) { return s.layout(columns, nil) }

func (s *Source) layout(columns, primaryKey []string) (*Layout, error) {
	l := &Layout{source: s, columns: columns}
	for _, part := range []struct {
		role
		at       *int
		required bool
	}{
		{idRole, &l.id, true},
		{typeRole, &l.typ, true},
		{versionRole, &l.version, false},
		{aggregateTypeRole, &l.aggregateType, false},
		{aggregateIDRole, &l.aggregateID, false},
		{topicRole, &l.topic, false},
		{revisionRole, &l.revision, false},
		{payloadRole, &l.payload, true},
		{headersRole, &l.headers, false},
		{timeRole, &l.time, false},
		{publishedRole, &l.published, false},
	} {
		at, err := s.find(part.role, columns)
		if err != nil {
			return nil, err
		}
		if at < 0 && part.required {
			return nil, &noColumnError{source: s, role: part.role}
		}
		*part.at = at
	}
	if err := l.findKey(); err != nil {
		return nil, err
	}
	if len(primaryKey) == 0 {
		l.row = []int{l.id}
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

// noColumnError says that none of the columns has what every event needs.
type noColumnError struct {
	source *Source
	role   role
}

func (e *noColumnError) Error() string {
	return fmt.Sprintf("source %q: no column of %s is known for the event %s: tried %s; map it with columns.%s",
		e.source.Name, e.source.relation(), e.role.option, strings.Join(e.role.names, ", "), e.role.option)
}

// find returns the index of the role's column, or -1. A column that was mapped must be there.
func (s *Source) find(r role, columns []string) (int, error) {
	if name := r.mapped(&s.Columns); name != "" {
		at := slices.Index(columns, name)
		if at < 0 {
			return -1, fmt.Errorf("source %q: columns.%s is %q, but %s has no such published column: it has %s",
				s.Name, r.option, name, s.relation(), strings.Join(columns, ", "))
		}
		return at, nil
	}
	for _, name := range r.names {
		if at := slices.Index(columns, name); at >= 0 {
			return at, nil
		}
	}
	return -1, nil
}

// findKey is find for the key, which may be a path and has defaults of its own.
func (l *Layout) findKey() error {
	var err error
	mapped := l.source.Columns.Key
	column, path, isPath := strings.Cut(mapped, ".")
	switch {
	case isPath && !slices.Contains(l.columns, mapped):
		l.path = strings.Split(path, ".")
		// "payload" and "headers" also mean whatever column was found to be that.
		if l.key = slices.Index(l.columns, column); l.key < 0 && column == payloadRole.option {
			l.key = l.payload
		} else if l.key < 0 && column == headersRole.option {
			l.key = l.headers
		}
		if l.key < 0 || slices.Contains(l.path, "") {
			err = fmt.Errorf("source %q: columns.key is %q, but %s has no such published column: it has %s",
				l.source.Name, mapped, l.source.relation(), strings.Join(l.columns, ", "))
		}
	default:
		if l.key, err = l.source.find(keyRole, l.columns); err == nil && l.key < 0 && l.aggregateID < 0 {
			l.warnings = append(l.warnings, fmt.Sprintf("source %q: %s has neither a partition_key nor an aggregate id: all its events share one key and are delivered one at a time; map columns.key", l.source.Name, l.source.relation()))
		}
	}
	return err
}

// Warnings are sentences for a person about what works, but surely is not meant.
func (l *Layout) Warnings() []string { return l.warnings }

// Published reports whether a row came with its published column set. Such a row is no event: an update
// that moves a row to another partition arrives as an insert.
func (l *Layout) Published(values [][]byte) bool {
	// A boolean's text is "t" or "f"; a time has none of these.
	published := l.value(values, l.published)
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
	key := l.value(values, l.key)
	if l.path != nil {
		key = []byte(storable(member(key, l.path))) // JSON may say U+0000, text cannot
	}
	if len(key) == 0 {
		key = l.value(values, l.aggregateID)
	}
	row := l.value(values, l.row[0])
	if len(l.row) > 1 {
		row = l.compositeRow(values)
	}

	payload, headers := l.value(values, l.payload), l.value(values, l.headers)
	texts := [...][]byte{
		l.value(values, l.id), l.value(values, l.typ), l.value(values, l.version),
		l.value(values, l.aggregateType), l.value(values, l.aggregateID), key,
		l.value(values, l.topic), l.value(values, l.revision), l.value(values, l.time), row,
	}
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
	keep := func(from []byte) []byte {
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
		*field = unsafe.String(unsafe.SliceData(keep(texts[i])), len(texts[i]))
	}
	if large {
		all = shelf.bytes(body)
	}
	e.Payload, e.Headers, e.PayloadType = keep(payload), keep(headers), l.payloadType
	e.Occurrence = occurrenceOf(e.OccurredAt, e.Type, e.Payload)

	checkNames(e)
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

func (l *Layout) value(values [][]byte, at int) []byte {
	if at < 0 {
		return nil
	}
	return values[at]
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
	return slices.Contains(l.row, at) || slices.Contains([]int{
		l.id, l.typ, l.version, l.aggregateType, l.aggregateID, l.key, l.topic, l.revision, l.payload, l.headers, l.time,
	}, at)
}
