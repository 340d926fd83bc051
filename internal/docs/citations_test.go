package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A citation of a section of a page, as comments and pages write it, and a number with a § alone.
var (
	citation = regexp.MustCompile(`(?:docs/)?([a-zA-Z-]+\.md)\x60?(?:\]\([^)]*\))? (§§?\d+(?:(?:, | and | to )§\d+)*)`)
	section  = regexp.MustCompile(`§(\d+)`)
	heading  = regexp.MustCompile(`(?m)^## (\d+)\. `)
	rfc      = regexp.MustCompile(`RFC \d+ §[\d.]+`)
)

// A reader follows a citation to a section of a page in this repository: the section must be there, and a § must
// say of which page it is.
func TestCitations_leadToSectionsThatExist(t *testing.T) {
	sections := map[string][]string{}
	for file, text := range pages(t) {
		for _, h := range heading.FindAllStringSubmatch(text, -1) {
			sections[filepath.Base(file)] = append(sections[filepath.Base(file)], h[1])
		}
	}
	cited := 0
	for file, text := range sourcesAndPages(t) {
		all := len(section.FindAllString(rfc.ReplaceAllString(text, ""), -1))
		for _, c := range citation.FindAllStringSubmatch(text, -1) {
			numbers := section.FindAllStringSubmatch(c[2], -1)
			all -= len(numbers)
			for _, n := range numbers {
				cited++
				if !slices.Contains(sections[c[1]], n[1]) {
					t.Errorf("%s cites %s §%s, which has no such section", file, c[1], n[1])
				}
			}
		}
		if all > 0 && filepath.Base(file) != "postgres.md" { // which refers to its own sections
			t.Errorf("%s has %d § without the page that they are of; write docs/<page>.md §<number>", file, all)
		}
	}
	if cited == 0 {
		t.Error("nothing cites a section")
	}
}

// sourcesAndPages are the texts of all Go and SQL files and pages by path, but this one's.
func sourcesAndPages(t *testing.T) map[string]string {
	t.Helper()
	found := pages(t)
	for _, root := range []string{"../../internal", "../../cmd", "../../migrations", "../../deploy"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".sql"}, filepath.Ext(path)) || strings.HasSuffix(path, "docs/citations_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			found[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
