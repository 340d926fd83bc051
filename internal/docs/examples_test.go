package docs

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
)

// example is a fenced block of a page.
type example struct {
	page, language, text string
	line                 int
}

func (e example) name() string { return fmt.Sprintf("%s:%d", filepath.Base(e.page), e.line) }

var fence = regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?)\n *```$")

// allExamples are the blocks with a language of README and docs, in their order.
func allExamples(t *testing.T) (all []example) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append([]string{"../../README.md", "../../CONTRIBUTING.md"}, pages...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range fence.FindAllSubmatchIndex(text, -1) {
			all = append(all, example{
				page: page, language: string(text[at[4]:at[5]]), text: string(text[at[6]:at[7]]),
				line: 1 + strings.Count(string(text[:at[4]]), "\n"),
			})
		}
	}
	return all
}

// examples of other languages than those that are run here.
var elsewhere = map[string]string{
	"js":   "run by the outside test of signed headers, where node is there",
	"php":  "not run: the tests have no PHP",
	"rust": "not run: the tests have no Rust",
}

// S-177: what a page shows works as it stands there. SQL runs in a database, YAML is read by the program, commands of
// walpost are run or, where they run until they are stopped, parsed; Go is parsed, and built by the tests of its pages.
func TestExamples_work(t *testing.T) {
	program := filepath.Join(t.TempDir(), "walpost")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/walpost").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	counts := make(map[string]int)
	files := make(map[string]string) // YAML blocks that say their name, for the commands that name them
	databases := make(map[string]*testdb.DB)
	server := testdb.NewServer(t, nil)
	database := func(t *testing.T, of string) *testdb.DB {
		t.Helper()
		if databases[of] == nil {
			databases[of] = testdb.On(t, server)
			for _, sql := range []string{
				`DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop') THEN CREATE ROLE shop; END IF; END $$`,
				`CREATE PUBLICATION walpost FOR TABLE outbox`,
			} {
				databases[of].Exec(sql)
			}
		}
		return databases[of]
	}
	for _, e := range allExamples(t) {
		switch e.language {
		case "sql":
			db := e.name()
			if strings.HasSuffix(e.page, "writing-events.md") {
				db = e.page // what one block makes, a later one uses
			}
			for _, sql := range statements(e.text) {
				if strings.Contains(sql, "sync_replication_slots") && database(t, db).Int(`SELECT current_setting('server_version_num')::int`) < 170000 {
					counts["SQL statements of a newer server not run"]++
					continue
				}
				counts["SQL statements run"]++
				if err := tryStatement(t, database(t, db), sql); err != nil {
					t.Errorf("%s: %v in\n%s", e.name(), err, sql)
				}
			}
		case "yaml":
			counts["YAML files read"]++
			readYAML(t, program, e)
			if name := named.FindStringSubmatch(e.text); name != nil {
				files[name[1]] = e.text
			}
		case "sh":
			tryShell(t, program, e, files, func() *testdb.DB { return database(t, "shell") }, counts)
		case "go":
			counts["Go blocks parsed"]++
			parseGo(t, e)
		default:
			if elsewhere[e.language] == "" {
				t.Errorf("%s: no test knows %s", e.name(), e.language)
			}
			counts[e.language+": "+elsewhere[e.language]]++
		}
	}
	for what, n := range counts {
		t.Logf("%d %s", n, what)
	}
	if counts["SQL statements run"] < 30 || counts["YAML files read"] < 5 || counts["commands of walpost run"] < 15 {
		t.Errorf("so few examples were found: %v", counts)
	}
}

// statements takes a block apart as psql does: at semicolons outside of quotes, dollar quotes and comments. BEGIN and COMMIT
// hold what is between them together.
func statements(block string) (all []string) {
	var now strings.Builder
	quoted, inside := false, false
	for line := range strings.Lines(block + "\n") {
		code, _, commented := strings.Cut(line, "-- ")
		if commented {
			code += "\n"
		}
		now.WriteString(code)
		if strings.Count(line, "$$")%2 == 1 {
			quoted = !quoted
		}
		switch strings.TrimSpace(code) {
		case "BEGIN;":
			inside = true
		case "COMMIT;":
			inside = false
		}
		if ended := strings.HasSuffix(strings.TrimSpace(code), ";"); ended && !quoted && !inside {
			all = append(all, strings.TrimSpace(now.String()))
			now.Reset()
		}
	}
	return all
}

// tryStatement sends what is sent at once. A slot is dropped where one of the name stands in the way.
func tryStatement(t *testing.T, db *testdb.DB, sql string) error {
	t.Helper()
	sql = strings.ReplaceAll(sql, "<slot>", "walpost")
	conn, err := db.Pool.Acquire(t.Context())
	if err != nil {
		return err
	}
	defer conn.Release()
	if strings.Contains(sql, "pg_create_logical_replication_slot('walpost'") {
		defer db.Exec(`SELECT pg_drop_replication_slot('walpost')`)
	}
	_, err = conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
	return err
}

// readYAML has the program read a block as walpost.yaml, in a list of subscribers where it is one of them.
func readYAML(t *testing.T, program string, e example) {
	t.Helper()
	text := e.text
	if strings.HasPrefix(text, "  - ") {
		text = "subscribers:\n" + text
	}
	// The kind of the page on subscribers is added by its reader; an outside test adds it.
	text = strings.ReplaceAll(text, "  - name: certificates", "")
	if !strings.Contains(text, "subscribers:") {
		text += "\nsubscribers:\n  - name: analytics\n"
	}
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "config", "--config="+file)
	cmd.Env = append(os.Environ(), "BILLING_SECRET=whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "TOKEN=t", "KAFKA_PASSWORD=p")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", e.name(), err, out)
	}
}

var (
	command = regexp.MustCompile(`^((?:\w+=\S+ )*)(?:bin/)?walpost (.*?)(?:\s+#.*|\s+\| jq .*)?$`)
	// untilStopped are commands that run until they are stopped, or for minutes: their flags are parsed.
	untilStopped = regexp.MustCompile(`^(api|relay|tail|demo|bench)\b`)
	anyURL       = regexp.MustCompile(`postgres://[^\s']*`)
	named        = regexp.MustCompile(`^# ([a-z]+\.yaml)\n`)
	target       = regexp.MustCompile(`^make (\S+)`)
)

// tryShell has the shell read a block, runs the commands of walpost in it, and looks for the targets of make.
func tryShell(t *testing.T, program string, e example, files map[string]string, database func() *testdb.DB, counts map[string]int) {
	t.Helper()
	counts["shell blocks read"]++
	if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", e.text).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", e.name(), err, out)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(e.text, "\\\n", " ")
	for _, line := range strings.Split(text, "\n") {
		if m := target.FindStringSubmatch(line); m != nil && !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("%s: the Makefile has no target %s", e.name(), m[1])
		}
		parts := command.FindStringSubmatch(line)
		if parts == nil {
			continue
		}
		db := database()
		args := anyURL.ReplaceAllString(parts[2], db.DSN)
		what := "commands of walpost run"
		if untilStopped.MatchString(args) {
			args, what = args+" --help", "commands of walpost parsed"
		}
		counts[what]++
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "-c", "walpost "+args)
		cmd.Dir = t.TempDir()
		for name, text := range files {
			if strings.Contains(args, "--config "+name) {
				if err := os.WriteFile(filepath.Join(cmd.Dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"),
			"WALPOST_DATABASE_URL="+db.DSN, "WALPOST_OPS_URL=http://127.0.0.1:1", "WALPOST_JWT_SECRET=01234567890123456789012345678901")
		out, err := cmd.CombinedOutput()
		cancel()
		// 1 is an answer, such as that an event is not known; 2 is wrong usage.
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: walpost %s: %v\n%s", e.name(), args, err, out)
		}
	}
}

// parseGo reads a block as declarations, or as an element of a map.
func parseGo(t *testing.T, e example) {
	t.Helper()
	_, err := parser.ParseFile(token.NewFileSet(), e.name(), "package p\n"+e.text, 0)
	if err == nil {
		return
	}
	if _, elementErr := parser.ParseExpr("map[string]any{" + e.text + "}"); elementErr != nil {
		t.Errorf("%s: %v", e.name(), err)
	}
}
