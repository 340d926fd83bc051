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

// Every long test is run by "make soak AREA=…" of one area, and every test that an area names is there.
func TestSoakAreas_nameEveryLongTestOnce(t *testing.T) {
	text, err := os.ReadFile("../../scripts/soak-areas.txt")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 {
			named = append(named, strings.TrimPrefix(fields[1], "./")+" "+fields[2])
		}
	}
	var there []string
	declared := regexp.MustCompile(`(?m)^func (TestSoak_\w+)\(`)
	err = filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, match := range declared.FindAllStringSubmatch(string(code), -1) {
			there = append(there, filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../../"))+" "+match[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(named)
	slices.Sort(there)
	if !slices.Equal(named, there) {
		t.Errorf("scripts/soak-areas.txt names\n%s\nand the long tests are\n%s", strings.Join(named, "\n"), strings.Join(there, "\n"))
	}
}
