package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	promiseHeading = regexp.MustCompile(`(?m)^##(?: |# Tests of )(P\d+)\b`)
	promiseTest    = regexp.MustCompile("`((?:[a-z]+\\.)(?:Test|Fuzz)\\w+)`")
)

// A promise is kept by the tests that the page names at its end, so they exist; a promise without a test says that it is
// not built yet.
func TestGuarantees_nameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := testNames(t)
	promises := map[string]string{} // the text of a promise and the list of its tests
	headings := promiseHeading.FindAllStringSubmatchIndex(string(text), -1)
	for i, at := range headings {
		name, end := string(text[at[2]:at[3]]), len(text)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		promises[name] += string(text[at[0]:end])
	}
	for _, name := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13"} {
		switch promise := promises[name]; {
		case promise == "":
			t.Errorf("%s has no heading", name)
		case !promiseTest.MatchString(promise) && !strings.Contains(promise, "Not built yet"):
			t.Errorf("%s names no test and does not say that it is not built yet", name)
		}
	}
	for _, test := range promiseTest.FindAllStringSubmatch(string(text), -1) {
		if !exist[test[1]] {
			t.Errorf("there is no test %s", test[1])
		}
	}
}

// testNames finds all tests of the repository, as folder.TestName.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir("../..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		for _, name := range functionsOf(t, file) {
			found[filepath.Base(filepath.Dir(file))+"."+name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// functionsOf lists what a file declares, methods as Type.Method.
func functionsOf(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Error(err)
		return nil
	}
	var names []string
	for _, declared := range parsed.Decls {
		function, ok := declared.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := function.Name.Name
		if function.Recv != nil {
			receiver := function.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			if typ, ok := receiver.(*ast.Ident); ok {
				name = typ.Name + "." + name
			}
		}
		names = append(names, name)
	}
	return names
}
