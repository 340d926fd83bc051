package outbox

import (
	"context"
	"slices"
	"strings"
)

// A Survey is what can be told of a source's table, also of one that is not understood.
type Survey struct {
	Source *Source
	// Table is nil where the table is not understood, and Problem says why.
	Table   *Table
	Problem error
	// Parts are those of an event, and what the work on its row takes from the table.
	Parts []SurveyPart
	// Unused are the columns that mean nothing to walpost.
	Unused []string
}

// SurveyPart tells where one part comes from.
type SurveyPart struct {
	// Name is that of the option, columns.<name>.
	Name string
	// From is a column or a path, "" where the table has none; Type is that of the column.
	From, Type string
	// Mapped tells that the configuration names it; else its name tells.
	Mapped bool
	// Required parts must be there. Tried are the names that are known for it.
	Required bool
	Tried    []string
	// Guess is a column that may be meant, where none was found.
	Guess string
}

// Survey looks at a source's table. The error is one of the database; what is wrong with the table is in the answer.
func (s *Source) Survey(ctx context.Context, db DB) (*Survey, error) {
	survey := &Survey{Source: s}
	found, err := s.find(ctx, db)
	if err != nil || found.problem != nil {
		survey.Problem = found.problem
		return survey, err
	}
	columns, err := s.attributes(ctx, db, found.oid)
	if err != nil {
		return nil, err
	}
	survey.Table, survey.Problem = s.Inspect(ctx, db)
	columns = slices.DeleteFunc(columns, func(c column) bool { return c.generated })
	l := &Layout{source: s, columns: namesOf(columns)}
	for _, p := range l.parts() {
		lacks := l.find(p)
		part := SurveyPart{Name: p.option, Mapped: p.mapped(&s.Columns) != "", Required: p.required, Tried: p.names}
		if lacks == nil && p.there() {
			part.From, part.Type = columns[p.at].name, columns[p.at].typ
			if p.steps != nil {
				part.From += "." + strings.Join(p.steps, ".")
			}
		} else {
			p.at = -1
		}
		survey.Parts = append(survey.Parts, part)
	}
	// What an event is known by comes first.
	slices.SortStableFunc(survey.Parts, func(a, b SurveyPart) int { return slices.Index(inOrder, a.Name) - slices.Index(inOrder, b.Name) })
	for i := range survey.Parts {
		survey.guess(&survey.Parts[i], columns)
	}
	for at, c := range columns {
		switch {
		case l.uses(at), c.name == survey.From(publishedRole.option), survey.Table != nil && slices.Contains(survey.Table.order, c.name):
		case survey.Table != nil && survey.Table.Published != "" && slices.Contains(survey.Table.MarkColumns(), c.name):
		case slices.ContainsFunc(survey.Parts, func(p SurveyPart) bool { return p.Guess == c.name }), isHeader(s, c.name):
		default:
			survey.Unused = append(survey.Unused, c.name)
		}
	}
	return survey, nil
}

// inOrder are the parts as a person asks for them.
var inOrder = []string{"id", "type", "key", "payload", "headers", "time", "published", "version", "aggregate_type", "aggregate_id", "topic", "revision"}

func isHeader(s *Source, column string) bool {
	for _, named := range s.Headers {
		if named == column {
			return true
		}
	}
	return false
}

// From is where a part comes from, "" where it comes from nowhere.
func (s *Survey) From(part string) string {
	for _, p := range s.Parts {
		if p.Name == part {
			return p.From
		}
	}
	return ""
}

// guess looks for a column that may be meant where the names tell none. It takes no column twice.
func (s *Survey) guess(part *SurveyPart, columns []column) {
	taken := func(name string) bool {
		return slices.ContainsFunc(s.Parts, func(p SurveyPart) bool { return p.From == name || p.Guess == name })
	}
	first := func(fits func(c column, name string) bool) {
		for _, c := range columns {
			if part.Guess == "" && !taken(c.name) && fits(c, strings.ToLower(c.name)) {
				part.Guess = c.name
			}
		}
	}
	has := func(name string, words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(name, word) })
	}
	if part.From != "" {
		return
	}
	keys := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.key == 0 })
	switch part.Name {
	case payloadRole.option:
		first(func(c column, _ string) bool { return c.base == "json" || c.base == "jsonb" })
		first(func(c column, _ string) bool { return c.base == "bytea" })
		first(func(c column, name string) bool {
			return c.category == "S" && has(name, "body", "message", "content", "event")
		})
	case idRole.option:
		first(func(c column, name string) bool {
			return has(name, "event") && has(name, "id") || strings.TrimLeft(name, "_") == "id" || has(name, "uuid", "ulid")
		})
		first(func(c column, _ string) bool { return len(keys) == 1 && c.key == 1 })
	case typeRole.option:
		first(func(c column, name string) bool {
			return (c.category == "S" || c.category == "E") && has(name, "type", "kind", "event", "name", "action")
		})
	case keyRole.option:
		if s.From(aggregateIDRole.option) == "" {
			first(func(c column, name string) bool { return has(name, "key") && c.key == 0 })
			first(func(c column, name string) bool { return strings.HasSuffix(name, "id") && c.key == 0 })
		}
	case publishedRole.option:
		first(func(c column, name string) bool {
			return (c.category == "D" || c.category == "B") && has(name, "sent", "publish", "process", "dispatch", "deliver")
		})
	case timeRole.option:
		first(func(c column, name string) bool {
			return c.category == "D" && has(name, "creat", "occur", "insert", "time", "date", "_at") && !has(name, "publish", "process", "deliver", "updat", "sent", "dispatch")
		})
	}
}

// Order are the columns by which a repair reads.
func (t *Table) Order() []string { return t.order }

// Rights are the rights on the table that the relay needs: words of GRANT, and the columns that it updates.
func (t *Table) Rights() (rights, updated []string) {
	rights = []string{"SELECT"}
	if t.Marks() {
		updated = t.MarkColumns()
	}
	if t.Source.Retention > 0 {
		rights = append(rights, "DELETE")
	}
	return rights, updated
}
