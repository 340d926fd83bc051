package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// S-440: a line of the log that names an event leads to the request that made it.
func TestLogs_nameTheCorrelationWithTheEvent(t *testing.T) {
	lines := 0
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext"}, method.Sel.Name) {
				return true
			}
			var attributes []string
			for _, arg := range call.Args {
				if literal, ok := arg.(*ast.BasicLit); ok {
					attributes = append(attributes, literal.Value)
				}
			}
			if slices.Contains(attributes, `"event"`) {
				lines++
				if !slices.Contains(attributes, `"correlation_id"`) {
					t.Errorf("%s logs an event without its correlation_id", files.Position(call.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines == 0 {
		t.Error("no line of the log names an event: this test looks at nothing")
	}
}
