package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readable are the packages whose files are read in one direction: no file uses what stands in a file that uses it.
var readable = []string{"relay", "lane", "dispatch", "slot", "store", "admin", "debt", "ops", "cli", "replay", "bearer"}

func TestFiles_ofOnePackageUseEachOtherInOneDirection(t *testing.T) {
	for _, name := range readable {
		if circle := circleOf(usesOf(t, filepath.Join("..", name))); circle != nil {
			t.Errorf("internal/%s: the files use each other in a circle: %s: move what the first needs of the last into a file that both use",
				name, strings.Join(circle, " -> "))
		}
	}
}

func TestFiles_circleIsFound(t *testing.T) {
	uses := map[string][]string{"a.go": {"b.go"}, "b.go": {"c.go", "d.go"}, "c.go": {"a.go"}}
	if got, want := strings.Join(circleOf(uses), " "), "a.go b.go c.go a.go"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	uses["c.go"] = nil
	if got := circleOf(uses); got != nil {
		t.Errorf("got %q, want none", got)
	}
}

// usesOf tells which files of a package use what is declared in which others.
func usesOf(t *testing.T, folder string) map[string][]string {
	t.Helper()
	files := token.NewFileSet()
	var parsed []*ast.File
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no Go files in %s: %v", folder, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	check := types.Config{Importer: noImports{}, Error: func(error) {}}
	check.Check("p", files, parsed, info) //nolint:errcheck // what is imported is not known
	uses := make(map[string][]string)
	for ident, used := range info.Uses {
		if used.Pkg() == nil || used.Pkg().Path() != "p" {
			continue
		}
		from := filepath.Base(files.Position(ident.Pos()).Filename)
		to := filepath.Base(files.Position(used.Pos()).Filename)
		if from != to && !slices.Contains(uses[from], to) {
			uses[from] = append(uses[from], to)
		}
	}
	for _, to := range uses {
		slices.Sort(to)
	}
	return uses
}

// circleOf returns a circle, its first file once more at its end, or nil.
func circleOf(uses map[string][]string) []string {
	done := make(map[string]bool)
	var path []string
	var visit func(file string) []string
	visit = func(file string) []string {
		if i := slices.Index(path, file); i >= 0 {
			return append(slices.Clone(path[i:]), file)
		}
		if done[file] {
			return nil
		}
		path = append(path, file)
		for _, to := range uses[file] {
			if circle := visit(to); circle != nil {
				return circle
			}
		}
		path = path[:len(path)-1]
		done[file] = true
		return nil
	}
	var from []string
	for file := range uses {
		from = append(from, file)
	}
	slices.Sort(from)
	for _, file := range from {
		if circle := visit(file); circle != nil {
			return circle
		}
	}
	return nil
}
