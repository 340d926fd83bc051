package logs_test

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

// S-86: a line of the log in JSON had the key "level" twice, and a program that reads it took the second. No attribute
// has the name of one of slog's own keys ("source" is one only with AddSource, which nothing sets).
func TestAttributes_haveNoNameOfTheLogsOwn(t *testing.T) {
	own := []string{`"time"`, `"level"`, `"msg"`}
	calls := []string{"Debug", "Info", "Warn", "Error", "Log", "With", "LogAttrs", "DebugContext", "InfoContext", "WarnContext", "ErrorContext",
		"String", "Any", "Int", "Int64", "Bool", "Duration", "Time", "Group", "append"}
	for _, root := range []string{"../../internal", "../../cmd"} {
		err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			check := func(arguments []ast.Expr) {
				for _, argument := range arguments {
					if text, is := argument.(*ast.BasicLit); is && slices.Contains(own, text.Value) {
						t.Errorf("%s: an attribute of the log is named %s, which is a key of its own", set.Position(text.Pos()), text.Value)
					}
				}
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.CallExpr:
					name := ""
					switch f := x.Fun.(type) {
					case *ast.Ident:
						name = f.Name
					case *ast.SelectorExpr:
						name = f.Sel.Name
					}
					if slices.Contains(calls, name) {
						check(x.Args)
					}
				case *ast.CompositeLit:
					if list, is := x.Type.(*ast.ArrayType); is {
						if of, is := list.Elt.(*ast.Ident); is && of.Name == "any" {
							check(x.Elts)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
