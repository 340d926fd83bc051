package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const fieldCases = "../../docs/field-cases.md"

var update = flag.Bool("update", false, "write the tests that carry a case's number into docs/field-cases.md")

var (
	caseRow    = regexp.MustCompile(`(?m)^\| ([FS]-\d{2,3}) \| (.+?) \| (.*?) \|$`)
	caseNumber = regexp.MustCompile(`\b[FS]-\d{2,3}\b`)
	stillOpen  = regexp.MustCompile(`comes with: (.*)$`)
	testName   = regexp.MustCompile("`([^`]+)`")
)

// Every case has a row, and a row has tests that exist, or a word on why it has none.
func TestFieldCases_haveTestsThatExist(t *testing.T) {
	tests := testsByCase(t, "../..")
	if *update {
		writeFieldCases(t, tests)
	}
	page, err := os.ReadFile(fieldCases)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, row := range caseRow.FindAllStringSubmatch(string(page), -1) {
		if _, twice := rows[row[1]]; twice {
			t.Errorf("%s has two rows", row[1])
		}
		rows[row[1]] = row[3]
	}
	for n := 1; n <= 70; n++ {
		if name := fmt.Sprintf("F-%02d", n); rows[name] == "" {
			t.Errorf("%s has no row", name)
		}
	}
	for name, cell := range rows {
		names := testName.FindAllStringSubmatch(cell, -1)
		if names == nil && !strings.HasPrefix(cell, "comes with: ") && !strings.HasPrefix(cell, "no test: ") {
			t.Errorf(`%s has neither a test nor "comes with: …" or "no test: …": %q`, name, cell)
		}
		for _, test := range names {
			if !slices.Contains(tests[name], test[1]) {
				t.Errorf("%s names %s, which is no test with %s in it: go test ./internal/docs -run FieldCases -update", name, test[1], name)
			}
		}
	}
	for name := range tests {
		if _, there := rows[name]; !there {
			t.Errorf("tests name %s, which has no row", name)
		}
	}
}

// writeFieldCases fills in the tests of each case that has any. What a cell says is still to come stays.
func writeFieldCases(t *testing.T, tests map[string][]string) {
	t.Helper()
	page, err := os.ReadFile(fieldCases)
	if err != nil {
		t.Fatal(err)
	}
	written := caseRow.ReplaceAllStringFunc(string(page), func(row string) string {
		part := caseRow.FindStringSubmatch(row)
		if len(tests[part[1]]) == 0 {
			return row
		}
		cell := "`" + strings.Join(tests[part[1]], "`<br>`") + "`"
		// Whether they are all of the case, a person decides, and takes the rest out.
		if open := stillOpen.FindStringSubmatch(part[3]); open != nil {
			cell += "<br>the rest comes with: " + open[1]
		}
		return fmt.Sprintf("| %s | %s | %s |", part[1], part[2], cell)
	})
	if err := os.WriteFile(fieldCases, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
}

// testsByCase finds the tests that name a case in their comment or body, as "folder.TestName".
func testsByCase(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, source, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, declared := range parsed.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(function.Name.Name, "Test") && !strings.HasPrefix(function.Name.Name, "Fuzz") {
				continue
			}
			start := function.Pos()
			if function.Doc != nil {
				start = function.Doc.Pos()
			}
			text := source[files.Position(start).Offset:files.Position(function.End()).Offset]
			name := path.Base(filepath.ToSlash(filepath.Dir(file))) + "." + function.Name.Name
			for _, number := range caseNumber.FindAllString(string(text), -1) {
				if !slices.Contains(found[number], name) {
					found[number] = append(found[number], name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
