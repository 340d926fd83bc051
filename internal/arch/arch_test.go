// Package arch keeps the import map of the rooms under internal/ as a test, so that arrows go on pointing
// one way, down the walk of an event (docs/ARCHITECTURE.md), and what else the whole tree keeps to: who owns a table,
// the words, and what is used under a lock.
package arch

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const prefix = "github.com/backendstart/walpost/internal/"

// A room may import the rooms that its line names, and nothing else of ours under internal/. A line names
// only rooms that stand above it: who wants to import upwards has found a reason to move something.
//
// What flows back, the confirmed LSN and what is owed, flows through small interfaces that their reader
// declares, not through an import. Imports of tests are free.
type room struct {
	name string
	may  string
}

var rooms = []room{
	// The vocabulary and what supports it.
	{"advice", ""},
	{"event", ""},
	{"slab", ""},
	{"safefile", ""},
	{"mask", ""},
	{"printable", ""},
	{"eventschema", "safefile"},
	{"config", "event eventschema safefile"},
	{"logs", ""},
	{"postgres", "safefile"},
	{"pgserver", ""},
	{"strictjson", ""},
	{"httpserver", "printable"},
	{"bearer", "httpserver safefile strictjson"},

	// What the relay keeps in Postgres: schema walpost but for owed and replays.
	{"store", "advice event postgres"},

	// Writing: one transaction makes the fact and the row.
	{"outbox", "advice event postgres printable slab"},

	// Relaying: from the bytes of the WAL to the handler of a subscriber, and back as a number.
	{"pgoutput", "event"},
	{"wal", "advice event postgres"},
	{"ack", "event slab"},
	{"subscriber", "event"},
	{"subscriber/inbox", "event postgres store subscriber"},
	{"envelope", "event"},
	{"route", "event"},
	{"sink/access", "config safefile"},
	{"sink/kafka", "config envelope event mask printable route safefile sink/access subscriber"},
	{"sink/nats", "config envelope event mask route safefile sink/access subscriber"},
	{"sink/file", "config envelope subscriber"},
	{"sink/websocket", "bearer config envelope event httpserver safefile sink/access subscriber"},
	{"sink/webhook", "config envelope event mask printable safefile subscriber"},
	{"lane", "ack event printable slab subscriber"},
	{"debt", "event lane outbox postgres printable store"},
	{"replay", "debt event outbox postgres printable store"},
	{"lease", "postgres store"},
	{"dispatch", "ack event outbox pgoutput"},
	{"slot", "advice event outbox postgres store wal"},
	{"tracing", "ack event subscriber"},
	{"relay", "ack advice debt dispatch event lane lease outbox postgres printable replay slot store subscriber tracing wal"},
	{"doctor", "advice debt event outbox postgres printable slot store subscriber wal"},
	{"admin", "debt event lane outbox postgres relay replay store wal"},
	{"ops", "admin debt doctor httpserver lane outbox postgres printable relay replay safefile store strictjson"},

	// The reference service: it writes events and reacts to them, and nothing of the relay knows it.
	{"lessons", "event mask outbox postgres subscriber subscriber/inbox"},
	{"lessons/httpapi", "bearer httpserver lessons postgres strictjson"},

	// app builds the parts of the program, cli calls it; bench measures with processes of the same program.
	{"app", "ack admin config doctor envelope event eventschema httpserver lane lease lessons lessons/httpapi logs mask ops outbox pgserver postgres relay sink/file sink/kafka sink/nats sink/webhook sink/websocket subscriber tracing"},
	{"bench", "event lessons pgserver postgres subscriber"},
	{"cli", "admin app bench config debt doctor lane lessons/httpapi logs mask postgres printable relay replay subscriber wal"},

	// For tests.
	{"testdb", "pgserver postgres"},
	{"testwait", ""},
	{"testprogram", "event testdb"},
	{"bearer/bearertest", ""},
	{"subscriber/subscribertest", "event postgres subscriber testdb"},
	{"sink/kafka/kafkatest", ""},
	{"sink/kafka/debeziumtest", "sink/kafka/kafkatest"},
	{"sink/nats/natstest", ""},
	{"examples", "pgserver sink/kafka/kafkatest sink/nats/natstest"},
	{"sink/sinktest", "event subscriber"},
	{"debt/debttest", "debt event lane"},
}

// pure rooms are tested under virtual time and with random interleavings, which holds only as long as
// they touch neither network, files, processes nor database.
var pure = []string{"event", "slab", "pgoutput", "ack", "subscriber", "lane", "route"}

// imports that make a room impure, with everything below them.
var impure = []string{"net", "os", "io/fs", "syscall", "database/sql", "github.com/jackc"}

func TestRooms_importOnlyWhatTheTableNames(t *testing.T) {
	for _, fault := range faults(rooms, importsBelow(t, "..")) {
		t.Error(fault)
	}
}

// The table of packages in docs/ARCHITECTURE.md names each room, and no other.
func TestRooms_standInTheTableOfPackages(t *testing.T) {
	page, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "\n## The packages\n")
	table, _, _ := strings.Cut(after, "\n## ")
	var named []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for i, part := range strings.Split(cells[1], "`") {
				if i%2 == 1 {
					named = append(named, part)
				}
			}
		}
	}
	want := []string{"arch", "docs", "soak"} // tests alone
	for _, r := range rooms {
		want = append(want, r.name)
	}
	slices.Sort(named)
	slices.Sort(want)
	if !slices.Equal(named, want) {
		for _, name := range want {
			if !slices.Contains(named, name) {
				t.Errorf("docs/ARCHITECTURE.md has no line for the package %s", name)
			}
		}
		for _, name := range named {
			if !slices.Contains(want, name) {
				t.Errorf("docs/ARCHITECTURE.md has a line for %s, which is no package", name)
			}
		}
		if len(named) != len(slices.Compact(slices.Clone(named))) {
			t.Error("docs/ARCHITECTURE.md has two lines for a package")
		}
	}
}

func TestPureRooms_doNoIOThroughAnyOfTheirImports(t *testing.T) {
	imports := importsBelow(t, "..")
	for _, name := range pure {
		for _, way := range impureWays(name, imports) {
			t.Errorf("%s: internal/%s does no I/O; declare a small interface for what it needs and let relay or app fulfil it", way, name)
		}
	}
}

// The test of the test: a way to I/O is found however long it is.
func TestImpureWays_areFoundThroughOtherRooms(t *testing.T) {
	imports := map[string][]string{
		"lane":       {"fmt", prefix + "subscriber", prefix + "event"},
		"subscriber": {prefix + "store", prefix + "event"},
		"store":      {"github.com/jackc/pgx/v5", "net/netip"},
		"event":      {"strings", "network"},
	}
	want := []string{"lane → subscriber → store → github.com/jackc/pgx/v5", "lane → subscriber → store → net/netip"}
	if got := impureWays("lane", imports); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := impureWays("event", imports); got != nil {
		t.Errorf("got %q for a pure room", got)
	}
}

// impureWays returns how a room comes to imports that do I/O, directly or through other rooms.
func impureWays(name string, imports map[string][]string) (ways []string) {
	seen := make(map[string]bool)
	var follow func(room, way string)
	follow = func(room, way string) {
		seen[room] = true
		for _, imported := range imports[room] {
			if other, ours := strings.CutPrefix(imported, prefix); ours {
				if !seen[other] {
					follow(other, way+" → "+other)
				}
				continue
			}
			for _, banned := range impure {
				if imported == banned || strings.HasPrefix(imported, banned+"/") {
					ways = append(ways, way+" → "+imported)
				}
			}
		}
	}
	follow(name, name)
	return ways
}

// The test of the test: each kind of fault is found, and the message says where the table is.
func TestFaults_nameWhatIsWrong(t *testing.T) {
	table := []room{{"event", ""}, {"lane", "event"}, {"relay", "lane"}}
	tests := []struct {
		name    string
		table   []room
		imports map[string][]string
		want    string
	}{
		{"an arrow that points up", table, map[string][]string{"event": nil, "lane": {prefix + "event", prefix + "relay"}, "relay": {prefix + "lane"}}, "internal/lane imports internal/relay"},
		{"a room without a line", table, map[string][]string{"event": nil, "lane": {prefix + "event"}, "relay": {prefix + "lane"}, "cellar": nil}, "internal/cellar has no line"},
		{"a line without a room", table, map[string][]string{"event": nil, "lane": {prefix + "event"}}, "internal/relay has a line"},
		{"a table that allows upwards", []room{{"event", "lane"}, {"lane", ""}}, map[string][]string{"event": {prefix + "lane"}, "lane": nil}, "stands below"},
		{"a room inside a room", table, map[string][]string{"event": nil, "lane": {prefix + "event", prefix + "lane/queue"}, "relay": {prefix + "lane"}}, "internal/lane imports internal/lane/queue"},
		{"a permission that no code uses", table, map[string][]string{"event": nil, "lane": {prefix + "event"}, "relay": nil}, "allows lane, which no file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := faults(test.table, test.imports)
			if len(got) != 1 || !strings.Contains(got[0], test.want) {
				t.Errorf("faults are %q, want one with %q", got, test.want)
			}
		})
	}
	if got := faults(table, map[string][]string{"event": {"fmt"}, "lane": {prefix + "event"}, "relay": {prefix + "lane"}}); got != nil {
		t.Errorf("faults in a sound house: %q", got)
	}
}

// faults compares the imports of each room with the table.
func faults(table []room, imports map[string][]string) []string {
	var found []string
	allowed := map[string][]string{}
	for _, r := range table {
		allowed[r.name] = strings.Fields(r.may)
		for _, name := range allowed[r.name] {
			if _, above := allowed[name]; !above || name == r.name {
				found = append(found, fmt.Sprintf("the line of %s allows %s, which stands below it or not at all: arrows point one way, so a line names only rooms above it", r.name, name))
			}
		}
		if _, exists := imports[r.name]; !exists {
			found = append(found, fmt.Sprintf("internal/%s has a line in internal/arch/arch_test.go and no code: take the line out", r.name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(imports)) {
		may, known := allowed[name]
		if !known {
			found = append(found, fmt.Sprintf("internal/%s has no line in internal/arch/arch_test.go: add one where the room stands in the walk, with the rooms that it may import", name))
			continue
		}
		used := make(map[string]bool)
		for _, imported := range imports[name] {
			other, ours := strings.CutPrefix(imported, prefix)
			if ours {
				used[other] = true
			}
			if ours && !slices.Contains(may, other) {
				found = append(found, fmt.Sprintf("internal/%s imports internal/%s, which its line in internal/arch/arch_test.go does not name: "+
					"let the reader declare a small interface and app fulfil it, or move the code to the room that owns the fact; "+
					"if the arrow is right, add it to the line in the same commit and say why", name, other))
			}
		}
		for _, other := range may {
			if !used[other] {
				found = append(found, fmt.Sprintf("the line of %s in internal/arch/arch_test.go allows %s, which no file of it imports: take the name out", name, other))
			}
		}
	}
	return found
}

// importsBelow reads what the Go files below root import, by folder. It reads all of them, whatever their
// build constraints, but no tests.
func importsBelow(t *testing.T, root string) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "testdata" {
			return fs.SkipDir
		}
		if entry.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		name := filepath.ToSlash(folder)
		if imports[name] == nil {
			imports[name] = []string{}
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(imports[name], imported) {
				imports[name] = append(imports[name], imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(imports) == 0 {
		t.Fatal("found no Go files below " + root)
	}
	return imports
}
