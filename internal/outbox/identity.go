package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/backendstart/walpost/internal/advice"
)

// maxOccurrence is how many bytes of a time's text are kept as an occurrence: any date type has fewer, and a
// column of another type may have any number.
const maxOccurrence = 64

// occurrenceOf returns the Occurrence of an event from the text of its time, "" for none, its type and its
// payload, nil for NULL. occurrenceSQL is the same in SQL, byte for byte.
func occurrenceOf(at, typ string, payload []byte) string {
	switch {
	case at == "":
		h := sha256.New()
		h.Write([]byte(typ))
		if payload != nil {
			h.Write([]byte{0}) // which no text of Postgres contains
			h.Write(payload)
		}
		return hex.EncodeToString(h.Sum(nil))
	case len(at) > maxOccurrence:
		sum := sha256.Sum256([]byte(at))
		return hex.EncodeToString(sum[:])
	}
	return at
}

// outputSQL is the text of a column as the stream has it, empty for NULL: concat calls the output function of the
// type, where a cast to text is something else for bool, char(n) and inet. It depends on the session's
// settings, so it belongs into a transaction of postgres.InTx or postgres.InSnapshot.
//
// The column's own collation may call different texts equal; the default one never does, and is that of the
// indexes of schema walpost.
func outputSQL(column string) string {
	return `(pg_catalog.concat(` + column + `) COLLATE pg_catalog."default")`
}

// utf8SQL is the UTF-8 bytes of a text, as the stream has them. A database without an encoding has no
// conversion, and the stream has its bytes as they are.
func utf8SQL(text string) string {
	return "pg_catalog.convert_to(" + text + ", CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)"
}

// part is the value of a field of a row, named t.
func (t *Table) part(f field) string {
	column := "t." + advice.Quote(t.Columns[f.at])
	if f.steps == nil {
		return column
	}
	return f.memberSQL(column)
}

// occurrenceSQL is the Occurrence of a row, named t; it is never NULL.
func (t *Table) occurrenceSQL() string {
	payload := t.part(t.layout.payload)
	hash := func(bytes string) string { return "pg_catalog.encode(pg_catalog.sha256(" + bytes + "), 'hex')" }
	content := hash(utf8SQL(outputSQL(t.part(t.layout.typ))) +
		" OPERATOR(pg_catalog.||) CASE WHEN " + payload + " IS NULL THEN pg_catalog.decode('', 'hex')" +
		" ELSE pg_catalog.decode('00', 'hex') OPERATOR(pg_catalog.||) " + utf8SQL(outputSQL(payload)) + " END")
	if !t.layout.time.there() {
		return content
	}
	column := t.part(t.layout.time)
	at := outputSQL(column)
	if t.timed { // never empty, never long
		return "CASE WHEN " + column + " IS NULL THEN " + content + " ELSE " + at + " END"
	}
	return "CASE WHEN " + column + " IS NULL OR " + at + " = '' THEN " + content +
		" WHEN pg_catalog.octet_length(" + utf8SQL(at) + ") > " + strconv.Itoa(maxOccurrence) + " THEN " + hash(utf8SQL(at)) +
		" ELSE " + at + " END"
}

// NumberedIDs reports whether event ids are integers, which a sequence that is set back gives out again.
func (t *Table) NumberedIDs() bool {
	return slices.Contains([]string{"pg_catalog.int2", "pg_catalog.int4", "pg_catalog.int8"}, t.types[t.layout.id.at]) && t.layout.id.steps == nil
}

// usableIDSQL tells whether the id column of a row, named t, holds what can be an event id; see checkNames.
func (t *Table) usableIDSQL() string {
	id := outputSQL(t.part(t.layout.id))
	return id + " <> '' AND pg_catalog.octet_length(" + utf8SQL(id) + ") <= " + strconv.Itoa(maxName)
}

// idSQL is the event id of a row, named t, as the stream has it. A row without a usable id has one that was
// made of its primary key, where that is a single column; else it is NULL.
func (t *Table) idSQL() string {
	made := "NULL"
	if len(t.Key) == 1 {
		made = "'" + madePrefix + "' OPERATOR(pg_catalog.||) " + outputSQL("t."+advice.Quote(t.Key[0]))
	}
	return "CASE WHEN " + t.usableIDSQL() + " THEN " + outputSQL(t.part(t.layout.id)) + " ELSE " + made + " END"
}

// sameSQL tells whether the row, named t and found by its primary key, is that of an event.
func (t *Table) sameSQL(id, occurrence string) string {
	return "CASE WHEN " + t.usableIDSQL() + " THEN " + outputSQL(t.part(t.layout.id)) + " = " + id +
		" ELSE pg_catalog.starts_with(" + id + ", '" + madePrefix + "') END AND " + t.occurrenceSQL() + " = " + occurrence
}
