package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A link from a page to a file of the repository, with its text and its target up to a "#".
var pageLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)#]+)(?:#[^)]*)?\)`)

// pages are the Markdown files by path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/decisions/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found[filepath.Clean(file)] = string(text)
		}
	}
	if len(found) == 0 {
		t.Fatal("found no pages")
	}
	return found
}

func TestPages_linkToFilesThatExist(t *testing.T) {
	for file, text := range pages(t) {
		for _, link := range pageLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(link[2], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), link[2])); err != nil {
				t.Errorf("%s links to %s: %v", file, link[2], err)
			}
		}
	}
}

// The walk is worth reading only as long as it is true: a function named in a link to a Go file, as
// [`Type.Method`] or [`function`], is declared in that file.
func TestArchitecture_namesFunctionsInTheFilesThatHaveThem(t *testing.T) {
	const page = "../../docs/ARCHITECTURE.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, link := range pageLink.FindAllStringSubmatch(string(text), -1) {
		name, isCode := strings.CutPrefix(link[1], "`")
		if !isCode || filepath.Ext(link[2]) != ".go" {
			continue
		}
		named++
		name = strings.TrimSuffix(name, "`")
		if !slices.ContainsFunc(functionsOf(t, filepath.Join("../../docs", link[2])), func(f string) bool {
			return f == name || strings.HasSuffix(f, "."+name)
		}) {
			t.Errorf("there is no function %s in %s", name, link[2])
		}
	}
	if named == 0 {
		t.Error("the walk names no function")
	}
}

// A person who follows the runbook at night types the name as it stands there.
func TestRunbook_asksOnlyForMetricsThatExist(t *testing.T) {
	known := literals(t, regexp.MustCompile(`"(walpost_[a-z_]+)"`))
	text, err := os.ReadFile("../../docs/RUNBOOK.md")
	if err != nil {
		t.Fatal(err)
	}
	asked := regexp.MustCompile(`walpost_[a-z_]+`).FindAllString(string(text), -1)
	if len(asked) == 0 {
		t.Fatal("the runbook asks for no metric")
	}
	for _, name := range asked {
		if !known[name] {
			t.Errorf("the runbook asks for %s, which nothing registers", name)
		}
	}
}
