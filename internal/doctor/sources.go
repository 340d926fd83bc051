package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// A SourceReport tells what walpost finds in the table of a source, or in one that is no source yet. Only the catalogue is
// read: no row is.
type SourceReport struct {
	Name     string `json:"name"`
	Table    string `json:"table,omitempty"`
	Messages string `json:"messages,omitempty"`
	// Problem says why an event cannot be made of a row; "" where it can.
	Problem  string       `json:"problem,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	Parts    []SourcePart `json:"parts,omitempty"`
	// Headers are further columns by the name of the header, Unused the columns that mean nothing to walpost.
	Headers map[string]string `json:"headers,omitempty"`
	Unused  []string          `json:"unused,omitempty"`
	// PrimaryKey finds a row again; Order is how a repair reads; Marked are the columns that a mark writes.
	PrimaryKey []string `json:"primary_key,omitempty"`
	Order      []string `json:"order,omitempty"`
	Marked     []string `json:"marked,omitempty"`
	// Rights are those that the relay's role needs on the table, Lacking what that role has not, with what grants it.
	Role    string             `json:"role,omitempty"`
	Rights  string             `json:"rights,omitempty"`
	Lacking []string           `json:"lacking,omitempty"`
	Grants  []advice.Statement `json:"grants,omitempty"`
	// Suggestion is the source as walpost.yaml would have it. Guessed parts are those that a person must look at.
	Suggestion string   `json:"suggestion,omitempty"`
	Guessed    []string `json:"guessed,omitempty"`
}

// SourcePart tells where a part of an event comes from.
type SourcePart struct {
	Name string `json:"name"`
	// From is a column or a path, "" where the table has none of Tried.
	From string `json:"from,omitempty"`
	Type string `json:"type,omitempty"`
	// How is configured, by name, or missing.
	How      string   `json:"how"`
	Required bool     `json:"required,omitempty"`
	Tried    []string `json:"tried,omitempty"`
	Guess    string   `json:"guess,omitempty"`
}

// Sources reports on sources. o says which database and whose rights.
func Sources(ctx context.Context, o Options) ([]SourceReport, error) {
	pool, err := postgres.OpenOne(ctx, o.DatabaseURL, application)
	if err != nil {
		return nil, err
	}
	defer closeSoon(pool)
	var reports []SourceReport
	for _, source := range o.Sources {
		report := SourceReport{Name: source.Name, Messages: source.Messages}
		if source.Messages == "" {
			if report, err = reportSource(ctx, pool, o, source); err != nil {
				return nil, postgres.Mask(err, o.DatabaseURL)
			}
		}
		reports = append(reports, report)
	}
	return reports, nil
}

func reportSource(ctx context.Context, pool *postgres.Pool, o Options, source *outbox.Source) (SourceReport, error) {
	report := SourceReport{Name: source.Name, Table: tableText(source), Headers: source.Headers}
	err := postgres.InReadOnly(ctx, pool, limits, func(tx pgx.Tx) error {
		survey, err := source.Survey(ctx, tx)
		if err != nil {
			return err
		}
		if survey.Problem != nil {
			report.Problem = survey.Problem.Error()
		}
		report.Unused = survey.Unused
		for _, p := range survey.Parts {
			part := SourcePart{Name: p.Name, From: p.From, Type: strings.ReplaceAll(strings.TrimPrefix(p.Type, "pg_catalog."), `"`, ""), How: "by name", Required: p.Required}
			switch {
			case p.From == "":
				part.How, part.Tried, part.Guess = "missing", p.Tried, p.Guess
			case p.Mapped:
				part.How = "configured"
			}
			report.Parts = append(report.Parts, part)
		}
		report.suggest(source)
		table := survey.Table
		if table == nil {
			return nil
		}
		report.Warnings, report.PrimaryKey, report.Order = table.Warnings(), table.Key, table.Order()
		if table.Marks() {
			report.Marked = table.MarkColumns()
		}
		c := &checker{Options: o, tx: tx}
		if err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&c.role); err != nil {
			return err
		}
		var m missing
		if err := c.lacksSource(ctx, &m, table); err != nil {
			return err
		}
		rights, updated := table.Rights()
		report.Role, report.Rights = c.role, advice.Rights(rights, updated)
		report.Lacking, report.Grants = m.what, m.sql
		return nil
	})
	return report, err
}

// tableText is the table as walpost.yaml has it.
func tableText(source *outbox.Source) string {
	names := []string{source.Schema, source.Table}
	for i, name := range names {
		if strings.Contains(name, ".") {
			names[i] = `"` + name + `"`
		}
	}
	return strings.Join(names, ".")
}

// suggest writes the source as walpost.yaml would have it. What is guessed says so.
func (r *SourceReport) suggest(source *outbox.Source) {
	var text strings.Builder
	fmt.Fprintf(&text, "sources:\n  - name: %s\n    table: %s\n", yamlText(source.Name), yamlText(r.Table))
	var columns []string
	for _, p := range r.Parts {
		switch {
		case p.How == "configured":
			columns = append(columns, fmt.Sprintf("      %s: %s\n", p.Name, yamlText(p.From)))
		case p.Guess != "":
			r.Guessed = append(r.Guessed, p.Name)
			columns = append(columns, fmt.Sprintf("      %s: %s    # a guess: look whether it is meant\n", p.Name, yamlText(p.Guess)))
		case p.How == "missing" && p.Required:
			r.Guessed = append(r.Guessed, p.Name)
			columns = append(columns, fmt.Sprintf("      %s: \"\"    # no column was found: name one, or a path as payload.%s\n", p.Name, p.Name))
		}
	}
	if order := source.Columns.Order; len(order) > 0 {
		quoted := make([]string, len(order))
		for i, column := range order {
			quoted[i] = yamlText(column)
		}
		columns = append(columns, "      order: ["+strings.Join(quoted, ", ")+"]\n")
	}
	if len(columns) > 0 {
		text.WriteString("    columns:\n" + strings.Join(columns, ""))
	}
	if len(source.Headers) > 0 {
		text.WriteString("    headers:\n")
		for _, name := range sorted(source.Headers) {
			fmt.Fprintf(&text, "      %s: %s\n", yamlText(name), yamlText(source.Headers[name]))
		}
	} else if len(r.Unused) > 0 {
		fmt.Fprintf(&text, "    # headers: {%s: %s}    # puts a further column into the headers of each event\n", yamlText(r.Unused[0]), yamlText(r.Unused[0]))
	}
	switch {
	case source.Deleted:
		text.WriteString("    rows: deleted\n")
	case source.Ours:
		text.WriteString("    rows: ours\n")
	}
	if source.Retention > 0 {
		fmt.Fprintf(&text, "    retention: %s\n", source.Retention)
	}
	if !source.Mark && !source.Deleted { // rows: deleted says that already
		text.WriteString("    mark: off\n")
	}
	if source.RepairAll {
		text.WriteString("    repair: all\n")
	}
	if source.SchemaFile != "" {
		fmt.Fprintf(&text, "    schema: %s\n", yamlText(source.SchemaFile))
	}
	if source.TimeZone != "" {
		fmt.Fprintf(&text, "    time_zone: %s\n", yamlText(source.TimeZone))
	}
	text.WriteString("subscribers:\n  - name: my-receiver\n    kind: webhook\n    url: https://receiver.example/hooks\n")
	r.Suggestion = text.String()
}

func sorted(m map[string]string) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var plainYAML = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// yamlText is a text as a value in YAML. A JSON string is one, too.
func yamlText(text string) string {
	if plainYAML.MatchString(text) && !slices.Contains([]string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(text)) {
		return text
	}
	quoted, _ := json.Marshal(text) // a string always has one
	return string(quoted)
}
