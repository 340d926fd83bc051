package printable

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// S-179
func TestCount_isGrammar(t *testing.T) {
	for want, got := range map[string]string{
		"1 event": Count(1, "event"), "0 events": Count(0, "event"), "2 events": Count(2, "event"),
		"1 event is": Count(1, "event", "is"), "3 events are": Count(3, "event", "is"), "2 rows were": Count(2, "row", "was"),
		"1 delivery waits": Count(1, "delivery", "waits"), "2 deliveries wait": Count(int64(2), "delivery", "waits"), "2 keys": Count(2, "key"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// bare is a number before a plural, which is one thing now and then.
var bare = regexp.MustCompile(`%d (?:\w+ )?(rows|events|deliveries|keys|transactions|calls|replays|subscribers)\b`)

// S-179: nowhere in the program a text counts without Count.
func TestTexts_countWithCount(t *testing.T) {
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		for _, other := range []string{"bench", "soak", "testdb", "testprogram", "debttest", "subscribertest"} {
			if strings.Contains(filepath.ToSlash(file), "/"+other+"/") {
				return nil
			}
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if l, is := n.(*ast.BasicLit); is && l.Kind == token.STRING && bare.MatchString(l.Value) {
				t.Errorf("%s: let printable.Count write %q", set.Position(l.Pos()), bare.FindString(l.Value))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
