package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestDocs_haveEveryOptionWithItsVariableKeyAndDefault(t *testing.T) {
	docs := readDocs(t)
	parser, err := NewParser(&grammar{}, lookupIn(nil), testKinds())
	if err != nil {
		t.Fatal(err)
	}
	options := 0
	for _, flag := range allFlags(parser.Kong.Model.Node) {
		if len(flag.Envs) == 0 {
			continue
		}
		options++
		row := ""
		for line := range strings.Lines(docs) {
			if strings.HasPrefix(line, "| `--"+flag.Name+"`") {
				row = line
			}
		}
		if row == "" {
			t.Errorf("docs/configuration.md has no row for --%s", flag.Name)
			continue
		}
		cells := strings.Split(row, "|")
		if got, want := strings.TrimSpace(cells[2]), "`"+flag.Envs[0]+"`"; got != want {
			t.Errorf("--%s: variable is %s in the docs, want %s", flag.Name, got, want)
		}
		if key := FileKey(flag); key != "" && strings.TrimSpace(cells[3]) != "`"+key+"`" {
			t.Errorf("--%s: key is %s in the docs, want `%s`", flag.Name, cells[3], key)
		}
		if flag.HasDefault && !strings.Contains(cells[4], "`"+flag.Default+"`") {
			t.Errorf("--%s: default is %s in the docs, want `%s`", flag.Name, cells[4], flag.Default)
		}
	}
	if options < 15 {
		t.Errorf("only %d options were looked at", options)
	}
}

func TestDocs_haveEveryKeyOfSourcesAndSubscribers(t *testing.T) {
	docs := readDocs(t)
	var checkKeys func(prefix string, of reflect.Type)
	checkKeys = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			key, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
			if key == "-" {
				continue
			}
			if of.Field(i).Type == reflect.TypeFor[Retry]() {
				checkKeys(key+".", of.Field(i).Type)
				continue
			}
			if !strings.Contains(docs, "`"+prefix+key+"`") {
				t.Errorf("docs/configuration.md does not explain %s%s", prefix, key)
			}
		}
	}
	checkKeys("", reflect.TypeFor[Source]())
	checkKeys("", reflect.TypeFor[Subscriber]())
	for _, role := range columnRoles {
		if !strings.Contains(docs, "`"+role+"`") {
			t.Errorf("docs/configuration.md does not name the column %s", role)
		}
	}
}

func readDocs(t *testing.T) string {
	t.Helper()
	docs, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(docs)
}
