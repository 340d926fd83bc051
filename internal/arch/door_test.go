package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Statements go to Postgres through one door, postgres.Pool, which runs none outside a pinned transaction
// (docs/postgres.md §9). Folders that are named here may open sessions in another way.
var sessions = map[string]string{
	"internal/postgres": "the door",
	"internal/lease":    "the session of the leadership: heartbeat, LISTEN",
	"internal/store":    "statements of the session of the leadership: election",
	"internal/wal":      "the replication connection",
	"migrations":        "goose needs database/sql",

	"internal/pgserver": "asks its private server whether it is ready",
	"internal/bench":    "measures with sessions like anyone's",
	"internal/testdb":   "for tests",
	"internal/examples": "plays the service: its tables and its traffic",
}

// ways are the names by which a session can be had without the door.
var ways = map[string][]string{
	"github.com/jackc/pgx/v5/pgxpool": {"*"},
	"github.com/jackc/pgx/v5/stdlib":  {"*"},
	"database/sql":                    {"*"},
	"github.com/jackc/pgx/v5":         {"Connect", "ConnectConfig", "ConnectWithOptions", "Conn"},
	"github.com/jackc/pgx/v5/pgconn":  {"Connect", "ConnectConfig", "ConnectWithOptions", "PgConn", "Construct"},
}

func TestSessions_areOpenedByTheDoorAlone(t *testing.T) {
	checked := 0
	err := filepath.WalkDir("../..", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && len(entry.Name()) > 2):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		name, err := filepath.Rel("../..", file)
		if err != nil {
			return err
		}
		if sessions[path.Dir(filepath.ToSlash(name))] != "" {
			return nil
		}
		checked++
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		for _, way := range waysIn(parsed) {
			t.Errorf("%s uses %s: statements go through postgres.Pool, which pins each transaction; "+
				"a session of its own takes postgres.DirectConfig, in a folder that the table above names", name, way)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("only %d files were looked at", checked)
	}
}

// The test of the test.
func TestWaysIn_areFound(t *testing.T) {
	for source, want := range map[string]string{
		`import "github.com/jackc/pgx/v5/pgxpool"; var x *pgxpool.Pool`:                   "[github.com/jackc/pgx/v5/pgxpool]",
		`import "database/sql"; var x *sql.DB`:                                            "[database/sql]",
		`import "github.com/jackc/pgx/v5"; func f() { pgx.Connect(nil, "") }`:             "[pgx.Connect]",
		`import other "github.com/jackc/pgx/v5"; var x *other.Conn`:                       "[other.Conn]",
		`import "github.com/jackc/pgx/v5"; func f(tx pgx.Tx) { tx.Conn().Exec(nil, "") }`: "[.Conn()]",
		`import "github.com/jackc/pgx/v5/pgconn"; var x *pgconn.PgConn`:                   "[pgconn.PgConn]",
		`import "github.com/jackc/pgx/v5"; var x pgx.Tx`:                                  "[]",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(waysIn(parsed)); got != want {
			t.Errorf("%s: found %s, want %s", source, got, want)
		}
	}
}

// waysIn returns what a file uses of ways.
func waysIn(file *ast.File) []string {
	found := []string{}
	names := map[string][]string{} // what is not to be used, by the name of the import
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		banned, ok := ways[imported]
		switch {
		case !ok:
		case banned[0] == "*":
			found = append(found, imported)
		default:
			name := path.Base(strings.TrimSuffix(imported, "/v5"))
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = banned
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if of, isName := n.X.(*ast.Ident); isName && slices.Contains(names[of.Name], n.Sel.Name) {
				found = append(found, of.Name+"."+n.Sel.Name)
			}
		case *ast.CallExpr:
			// The session under a transaction outlives its pins.
			if method, isMethod := n.Fun.(*ast.SelectorExpr); isMethod && method.Sel.Name == "Conn" && len(n.Args) == 0 && len(names) > 0 {
				found = append(found, ".Conn()")
			}
		}
		return true
	})
	return found
}
