package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// owners are the rooms that alone spell the name of a table in SQL. A statement over two tables stands with the table
// that it writes, and takes its condition on the other as SQL that the owner of that one exports.
var owners = map[string]string{
	"walpost.slots":         "store",
	"walpost.subscribers":   "store",
	"walpost.inbox":         "store",
	"walpost.audit":         "store",
	"walpost.marked_tables": "store",
	"walpost.leader":        "store",
	"walpost.fence":         "store",
	"walpost.turns":         "store",
	"walpost.owed":          "debt",
	"walpost.replays":       "replay",
}

// guests are rooms that spell tables of others, each with its reason.
var guests = map[string]string{
	"bench":         "puts a relay's tables into a state from outside, as no relay does",
	"testprogram":   "for tests: looks at the tables from outside",
	"testdb":        "for tests: a server with neighbours, whose rows no statement of ours may touch",
	"debt/debttest": "for tests: counts what is owed from outside of any debt.Store",
}

// Files of tests are exempt. They look at the tables from outside, as a person with psql does, or put them into a state that
// none of our code makes: asked through its owner, a table would hide what the owner does wrong. A count that several
// packages need stands in the owner's package for tests (debttest.Dead). They spell only tables that have an owner.

// spelledInSQL finds the name of a table where SQL has it, and not in a sentence for people.
var spelledInSQL = regexp.MustCompile(`(?i)(?:\b(?:from|join|into|update|truncate|table|only)\s+|[,']\s*)(walpost\.[a-z_]+)`)

// tablesIn returns the tables that a string spells in SQL.
func tablesIn(text string) []string {
	var tables []string
	for _, match := range spelledInSQL.FindAllStringSubmatch(text, -1) {
		if table := match[1]; table != "walpost.yaml" { // the file
			tables = append(tables, table)
		}
	}
	return tables
}

func TestTables_areSpelledByTheirOwnerAlone(t *testing.T) {
	spelled := make(map[string]bool)
	used := make(map[string]bool)
	eachText(t, func(room, file, text string) {
		for _, table := range tablesIn(text) {
			owner, known := owners[table]
			spelled[table] = true
			switch {
			case !known:
				t.Errorf("%s spells %s, which no line of internal/arch/tables_test.go gives an owner", file, table)
			case room == owner:
			case guests[room] != "":
				used[room] = true
			default:
				t.Errorf("%s spells %s in SQL: that table is owned by internal/%s; call a function there, or take its condition from there", file, table, owner)
			}
		}
	})
	for table := range owners {
		if !spelled[table] {
			t.Errorf("nothing spells %s: take its line out", table)
		}
	}
	for room := range guests {
		if !used[room] {
			t.Errorf("internal/%s spells no table of others: take its line out", room)
		}
	}
}

func TestTables_ofTestsHaveAnOwner(t *testing.T) {
	others := []string{"walpost.walpost_schema_version", "walpost.audit_id_seq"} // goose's, and a sequence
	eachTextOf(t, isTest, func(room, file, text string) {
		for _, table := range tablesIn(text) {
			if room != "arch" && owners[table] == "" && !slices.Contains(others, table) {
				t.Errorf("%s spells %s: there is no such table", file, table)
			}
		}
	})
}

// The test of the test.
func TestTablesIn_areThoseOfSQL(t *testing.T) {
	for text, want := range map[string]string{
		`SELECT 1 FROM walpost.owed o JOIN walpost.slots s`:      "walpost.owed walpost.slots",
		`INSERT INTO walpost.inbox`:                              "walpost.inbox",
		"TRUNCATE\n\twalpost.owed":                               "walpost.owed",
		`SELECT pg_get_serial_sequence('walpost.audit', 'id')`:   "walpost.audit",
		`a line of 'walpost.yaml'`:                               "",
		`kept in walpost.audit with your user name`:              "",
		`Notes that could not be written to walpost.audit`:       "",
		`walpost.slots says so, and walpost.subscribers as well`: "",
	} {
		if got := strings.Join(tablesIn(text), " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// sqlWords begin statements. Sentences do not write them in capitals.
var sqlWords = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|MERGE|WITH RECURSIVE|ALTER|CREATE|DROP|LOCK|GRANT|REVOKE|NOTIFY|LISTEN)\b`)

func TestRelay_hasNoSQL(t *testing.T) {
	eachText(t, func(room, file, text string) {
		if word := sqlWords.FindString(text); room == "relay" && word != "" {
			t.Errorf("%s has SQL (%s): internal/relay calls the owners of the tables in order and has no SQL itself: %s", file, word, text)
		}
	})
}

func isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }

// eachText calls f for each string of the rooms' code but for tests.
func eachText(t *testing.T, f func(room, file, text string)) {
	t.Helper()
	eachTextOf(t, func(file string) bool { return !isTest(file) }, f)
}

// eachTextOf calls f for each string of the Go files that are wanted.
func eachTextOf(t *testing.T, wanted func(file string) bool, f func(room, file, text string)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(file) != ".go" || !wanted(file) {
			return err
		}
		files++
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), "../")
		for _, text := range textsIn(parsed) {
			f(path.Dir(name), "internal/"+name, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d files were read", files)
	}
}

// textsIn returns the string literals of a file; those that are added up are one.
func textsIn(file *ast.File) []string {
	var texts []string
	inside := make(map[ast.Node]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			if n.Op == token.ADD && !inside[n] {
				if text, parts := added(n, inside); parts > 1 {
					texts = append(texts, text)
				}
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING && !inside[n] {
				texts = append(texts, literal(n))
			}
		}
		return true
	})
	return texts
}

// added is the text of literals that are added up, with a blank for each value between them.
func added(expr ast.Expr, inside map[ast.Node]bool) (text string, parts int) {
	switch e := expr.(type) {
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return " ", 0
		}
		inside[e] = true
		left, l := added(e.X, inside)
		right, r := added(e.Y, inside)
		return left + right, l + r
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			inside[e] = true
			return literal(e), 1
		}
	}
	return " ", 0
}

func literal(lit *ast.BasicLit) string {
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return lit.Value
	}
	return text
}

// The test of the test.
func TestTextsIn_joinWhatIsAddedUp(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nimport \"fmt\"\n"+
		"var a, b = \"FROM wal\" + \"post.slots\" + c + \" s\", `x`", parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := textsIn(parsed), []string{"FROM walpost.slots  s", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
