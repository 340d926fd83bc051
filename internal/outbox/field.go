package outbox

import (
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A field is where a part of an event stands: a column, or a member of a JSON document in it.
type field struct {
	// at is an index into a row, -1 for what the table does not have.
	at int
	// steps lead to a member below the column; nil when the column itself is meant.
	steps []string
	// asWritten tells that the column has type json: it keeps its text as it was written, members that repeat
	// a name and escapes that Postgres itself cannot read among them. jsonb has neither.
	asWritten bool
}

func (f field) there() bool { return f.at >= 0 }

// of is the text of the field in a row, nil for NULL and for what the table does not have. memberSQL is the
// same in SQL.
func (f field) of(values [][]byte) []byte {
	switch {
	case f.at < 0:
		return nil
	case f.steps == nil:
		return values[f.at]
	case f.asWritten:
		return []byte(lastMember(values[f.at], f.steps))
	}
	return []byte(storable(member(values[f.at], f.steps))) // a text with JSON may say U+0000
}

// memberSQL is the text of a member of a JSON column, NULL where there is none, byte for byte what the stream's
// side makes of it: a string, number or boolean. (PostgreSQL manual, "JSON Functions and Operators")
func (f field) memberSQL(column string) string {
	typ := "jsonb"
	if f.asWritten {
		typ = "json"
	}
	value := column + "::pg_catalog." + typ
	for _, step := range f.steps {
		value += " OPERATOR(pg_catalog.->) '" + strings.ReplaceAll(step, "'", "''") + "'::text"
	}
	value = "(" + value + ")"
	text := "CASE WHEN pg_catalog." + typ + "_typeof" + value + " IN ('string', 'number', 'boolean') THEN " +
		value + " OPERATOR(pg_catalog.#>>) '{}' END"
	if f.asWritten {
		text = "CASE WHEN " + readableSQL(column) + " THEN " + text + " END"
	}
	return "(" + text + ")"
}

// textSQL is the text of whatever stands at the end of the path in a jsonb column, as an index has it that a person
// makes: ((payload ->> 'event_id')).
func (f field) textSQL(column string) string {
	for i, step := range f.steps {
		operator := " OPERATOR(pg_catalog.->) '"
		if i == len(f.steps)-1 {
			operator = " OPERATOR(pg_catalog.->>) '"
		}
		column = "(" + column + operator + strings.ReplaceAll(step, "'", "''") + "'::text)"
	}
	return column
}

// readableSQL tells whether Postgres can read a value of type json, and not only keep it: it refuses a document with
// U+0000 or half of a surrogate pair anywhere, at each look into it. readable is the same.
func readableSQL(column string) string {
	document := column + "::text"
	const (
		twoBackslashes = `E'\\\\\\\\'`
		surrogatePair  = `E'\\\\u[dD][89abAB]..\\\\u[dD][c-fC-F]'`
		unreadable     = `E'\\\\u(0000|[dD][89a-fA-F])'`
	)
	return "pg_catalog.strpos(" + document + `, E'\\u') = 0 OR NOT pg_catalog.regexp_replace(pg_catalog.regexp_replace(` +
		document + ", " + twoBackslashes + ", 'x', 'g'), " + surrogatePair + ", 'x', 'g') OPERATOR(pg_catalog.~) " + unreadable
}

// readable reports whether Postgres can read a document of type json.
func readable(document []byte) bool {
	for i := 0; i < len(document); i++ {
		if document[i] != '\\' || i+1 == len(document) {
			continue
		}
		if i++; document[i] != 'u' {
			continue
		}
		r, ok := escaped(document[i-1:])
		if !ok || r == 0 {
			return false
		}
		i += 4
		if !utf16.IsSurrogate(r) {
			continue
		}
		low, ok := escaped(document[i+1:])
		if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// escaped reads an escape of the form \u0000 that text begins with.
func escaped(text []byte) (r rune, ok bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	for _, b := range text[2:6] {
		r <<= 4
		switch {
		case '0' <= b && b <= '9':
			r |= rune(b - '0')
		case 'a' <= b|0x20 && b|0x20 <= 'f':
			r |= rune(b|0x20-'a') + 10
		default:
			return 0, false
		}
	}
	return r, true
}

// lastMember is member for a document of type json: of members with one name the last counts, as for Postgres.
func lastMember(document []byte, path []string) string {
	if !readable(document) {
		return ""
	}
	for _, name := range path {
		var members map[string]json.RawMessage
		if json.Unmarshal(document, &members) != nil {
			return ""
		}
		document = members[name]
	}
	return member(document, nil)
}
