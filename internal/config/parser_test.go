package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/safefile"
)

// grammar is a program with one command that reads everything.
type grammar struct {
	Relay everything `cmd:""`
	Demo  struct {
		API
		Rate int `default:"2"`
	} `cmd:""`
}

type everything struct {
	File
	Log
	Relay
	API
	Mail
	Ops
	RelayURL
}

type result struct {
	options everything
	flow    Flow
	parser  *Parser
	ctx     *kong.Context
}

// sendOptions are those of a kind that sends.
type sendOptions struct {
	URL          string            `yaml:"url,omitempty"`
	Secret       Secrets           `yaml:"secret,omitempty"`
	Headers      map[string]Secret `yaml:"headers,omitempty"`
	AllowPrivate bool              `yaml:"allow_private,omitempty"`
	SASL         struct {
		Password Secret `yaml:"password,omitempty"`
	} `yaml:"sasl,omitempty"`
}

func (*sendOptions) Check(Subscriber, func(string, error)) {}
func (*sendOptions) SecretTexts() []string                 { return nil }

type formatOptions struct {
	sendOptions `yaml:"-"`
	Format      string `yaml:"format,omitempty"`
}

type pathOptions struct {
	sendOptions `yaml:"-"`
	Path        string `yaml:"path,omitempty"`
	Format      string `yaml:"format,omitempty"`
}

// testKinds are those of the learning platform and two that send.
func testKinds() Kinds {
	send := Kind{Options: func() Options { return new(sendOptions) }}
	patient := send
	patient.Pipeline = true
	patient.Defaults = func(s *Subscriber) { s.Standstill = Duration(10e9) }
	kinds := Kinds{"recording": send, "sending": patient}
	for _, name := range LessonKinds {
		kinds[name] = Kind{OwnName: true}
	}
	return kinds
}

func sent(s Subscriber) *sendOptions { return s.Options.(*sendOptions) }

// parse runs "relay" with a file of this text, or none for "", and an environment that has a database.
func parse(t *testing.T, yaml string, env map[string]string, args ...string) (result, error) {
	t.Helper()
	all := map[string]string{"WALPOST_DATABASE_URL": "postgres://app:pw@db/app"}
	for name, value := range env {
		all[name] = value
	}
	args = append([]string{"relay"}, args...)
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "walpost.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	var cli grammar
	parser, err := NewParser(&cli, lookupIn(all), testKinds(), kong.Name("walpost"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := parser.Parse(args)
	return result{cli.Relay, parser.Flow, parser, ctx}, err
}

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { value, ok := env[name]; return value, ok }
}

// wantProblems asks that the error has these parts, and nothing else in it is a problem.
func wantProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	var got *Error
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	if !errors.As(err, &got) {
		t.Fatalf("error is a %T, want *Error: %v", err, err)
	}
	for _, part := range want {
		if !strings.Contains(got.Error(), part) {
			t.Errorf("error says\n%v\nwant %q in it", got, part)
		}
	}
	if len(got.Problems) != len(want) {
		t.Errorf("%d problems, want %d:\n%v", len(got.Problems), len(want), got)
	}
}

func TestParse_takesFlagBeforeVariableBeforeFileBeforeDefault(t *testing.T) {
	const file = "slot: from_file\npublication: from_file\nwindow: {events: 7}\ndrain: 3s\n"
	env := map[string]string{"WALPOST_SLOT": "from_env", "WALPOST_PUBLICATION": "from_env", "WALPOST_DRAIN": ""}
	got, err := parse(t, file, env, "--slot=from_flag")
	if err != nil {
		t.Fatal(err)
	}
	o := got.options
	if o.Slot != "from_flag" || o.Publication != "from_env" || o.WindowEvents != 7 || o.WindowBytes != 32<<20 {
		t.Errorf("slot %s, publication %s, events %d, bytes %s", o.Slot, o.Publication, o.WindowEvents, o.WindowBytes)
	}
	if got, want := o.Drain.String(), "3s"; got != want {
		t.Errorf("an empty variable counts as set: drain %s, want %s", got, want)
	}
}

func TestParse_defaultsAreThoseOfDefaultRelay(t *testing.T) {
	got, err := parse(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	relay, want := got.options.Relay, DefaultRelay("postgres://app:pw@db/app")
	if got, want := relay.Slot+relay.Publication, want.Slot+want.Publication; got != want {
		t.Errorf("names %s, want %s", got, want)
	}
	if relay.WindowEvents != want.WindowEvents || relay.WindowBytes != want.WindowBytes || relay.MaxEvent != want.MaxEvent ||
		relay.WALBudget != want.WALBudget || relay.Drain != want.Drain || relay.Stream() != want.Stream() {
		t.Errorf("got %+v, want %+v", relay, want)
	}
	if len(got.flow.Subscribers) != 4 || got.flow.Sources[0].Table != "public.outbox" || got.flow.Named {
		t.Errorf("flow %+v", got.flow)
	}
}

func TestParse_reportsAllBadValuesTogetherWithTheirLines(t *testing.T) {
	const file = `slot: Not-A-Slot
window:
  events: none
  bytes: 12 parsec
wal_budget: a lot
log_level: loud
sources:
  - name: Bad Name
    table: outbox
    mark: perhaps
    retention: 3 fortnights
  - name: x
    table: a.b
    messages: both
subscribers:
  - name: achievements
    sources: [nowhere]
    events: ["lesson.?"]
    timeout: soon
    concurrency: 0
    retry: {initial: 1m, max: 1s}
  - name: achievements
    kind: pigeon
    ordering: random
`
	_, err := parse(t, file, map[string]string{"WALPOST_DRAIN": "-1s", "WALPOST_AUTH": "hope"})
	wantProblems(t, err,
		"WALPOST_DRAIN: \"-1s\" is not a duration",
		"WALPOST_AUTH: \"hope\" is none of jwt, dev",
		"yaml:1: slot: \"Not-A-Slot\" is not a slot name",
		"yaml:3: window.events: \"none\" is not a whole number above 0",
		"yaml:4: window.bytes: \"12 parsec\" is not a size",
		"yaml:5: wal_budget: ",
		"yaml:6: log_level: \"loud\"",
		"yaml:8: source \"Bad Name\": name: use 1 to 64",
		"yaml:9: source \"Bad Name\": table: \"outbox\" is not schema.table",
		"yaml:10: source \"Bad Name\": mark: \"perhaps\" is none of auto, off",
		"yaml:11: sources[0].retention: \"3 fortnights\"",
		"source \"x\": table: give either table: schema.table, or messages: prefix",
		"yaml:17: subscriber \"achievements\": sources: there is no source \"nowhere\"",
		"yaml:18: subscriber \"achievements\": events: \"lesson.?\"",
		"yaml:19: subscribers[0].timeout: \"soon\" is not a duration",
		"yaml:20: subscriber \"achievements\": concurrency: must be above 0",
		"yaml:21: subscriber \"achievements\": retry.max: 1s is less than retry.initial, 1m",
		"yaml:22: subscriber \"achievements\": name: stands there twice",
		"yaml:23: subscriber \"achievements\": kind: \"pigeon\" is not known here: there are achievements, analytics",
		"yaml:24: subscriber \"achievements\": ordering: \"random\" is none of key, total, none",
	)
}

func TestParse_stopsAtSyntaxErrorsAndUnknownKeysAndShowsTheLine(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"syntax":       {"slot: a\nwindow: {events: 1\n", "walpost.yaml:2:"},
		"twice":        {"slot: a\nslot: b\n", `walpost.yaml:2:1: mapping key "slot" already defined`},
		"top":          {"slot: a\nslott: b\n", "walpost.yaml:2: unknown key \"slott\", is slot meant?\n    2 | slott: …\n        ^"},
		"nested":       {"window:\n  evnts: 5\n", `walpost.yaml:2: unknown key "window.evnts"`},
		"source":       {"sources:\n  - name: a\n    tabel: b.c\n", "walpost.yaml:3:5: unknown field \"tabel\"\n    3 |     tabel: …\n            ^"},
		"retry":        {"subscribers:\n  - name: analytics\n    retry: {intial: 1s}\n", `unknown field "intial"`},
		"wrong kind":   {"sources: 5\n", "walpost.yaml:1:"},
		"not a number": {"subscribers:\n  - name: analytics\n    concurrency: 1.5\n", `walpost.yaml:3: subscribers[0].concurrency: "1.5" is not a whole number`},
		"list":         {"- slot\n", "keys and values are expected"},
		"two":          {"slot: a\n---\nslot: b\n", "more than one document"},
		"demo's own":   {"rate: 5\n", `unknown key "rate"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, test.file, nil)
			wantProblems(t, err, test.want)
		})
	}
}

// S-498: an empty list from a template would be everything, and a name that a kind cannot have was found at the start alone.
func TestParse_refusesWhatWouldMeanSomethingElse(t *testing.T) {
	const file = `sources:
  - {name: own, table: walpost.owed}
subscribers:
  - {name: second, kind: achievements}
  - {name: nothing, kind: recording, events: [], sources: []}
`
	_, err := parse(t, file, nil)
	wantProblems(t, err,
		"yaml:2: source \"own\": table: \"walpost.owed\" is one of walpost's own tables",
		"yaml:4: subscriber \"second\": name: a subscriber of kind achievements can only be named achievements",
		"yaml:5: subscriber \"nothing\": events: is an empty list",
		"yaml:5: subscriber \"nothing\": sources: is an empty list",
	)
}

func TestParse_namesOfAFileReplaceBothDefaults(t *testing.T) {
	got, err := parse(t, "sources:\n  - {name: shop, table: shop.events}\nsubscribers:\n  - {name: copy, kind: recording}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.flow.Sources) != 1 || len(got.flow.Subscribers) != 1 || !got.flow.Named {
		t.Fatalf("flow %+v", got.flow)
	}
	if s := got.flow.Sources[0]; s.Rows != "shared" || s.Retention != 0 || s.Mark != "auto" {
		t.Errorf("source %+v: walpost would delete rows of a table it did not make", s)
	}
	if s := got.flow.Subscribers[0]; s.Kind != "recording" || s.Concurrency != 8 || s.Retry.Max.String() != "30s" {
		t.Errorf("subscriber %+v has not its defaults", s)
	}
	_, err = parse(t, "sources:\n  - {name: shop, table: shop.events}\n", nil)
	wantProblems(t, err, "subscribers: name at least one")
}

func TestParse_readsEveryWayOfWritingAValue(t *testing.T) {
	const file = `
slot: ${SLOT}
ops_token: {file: token.txt}
smtp_url: smtp://u:${PASSWORD}@h
publication: $${literal}
sources: [{name: s, table: a.b, retention: 7d}]
subscribers:
  - &first
    name: first
    kind: recording
    concurrency: ${WORKERS}
    allow_private: ${PRIVATE}
    secret: ${PASSWORD}
    headers: {Code: 007, Authorization: "Bearer ${PASSWORD}"}
  - <<: *first
    name: second
    secret: [a, {file: token.txt}]
`
	folder := t.TempDir()
	path := filepath.Join(folder, "w.yaml")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, file)
	write(filepath.Join(folder, "token.txt"), "s3cret\n")
	env := map[string]string{"SLOT": "from_env", "PASSWORD": "p:w#{}\"", "WORKERS": "3", "PRIVATE": "true", "WALPOST_CONFIG": path}
	got, err := parse(t, "", env)
	if err != nil {
		t.Fatal(err)
	}
	o, first, second := got.options, got.flow.Subscribers[0], got.flow.Subscribers[1]
	for _, test := range []struct{ what, got, want string }{
		{"slot", o.Slot, "from_env"},
		{"token", o.OpsToken.Reveal(), "s3cret"},
		{"smtp", o.SMTPURL.Reveal(), "smtp://u:p:w#{}\"@h"},
		{"escaped reference", o.Publication, "${literal}"},
		{"retention", got.flow.Sources[0].Retention.String(), "168h"},
		{"secret", sent(first).Secret[0].Reveal(), "p:w#{}\""},
		{"number as text", sent(first).Headers["Code"].Reveal(), "007"},
		{"reference in text", sent(first).Headers["Authorization"].Reveal(), "Bearer p:w#{}\""},
		{"merged", second.Kind, "recording"},
		{"list of secrets", sent(second).Secret[0].Reveal() + sent(second).Secret[1].Reveal(), "as3cret"},
	} {
		if test.got != test.want {
			t.Errorf("%s is %q, want %q", test.what, test.got, test.want)
		}
	}
	if first.Concurrency != 3 || !sent(first).AllowPrivate || second.Concurrency != 3 {
		t.Errorf("subscribers %+v, %+v", first, second)
	}
}

// S-58: passwords and secrets are rotated in their files while the program runs.
func TestParse_letsSecretsInFilesChange(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(folder, "w.yaml")
	write("w.yaml", `
database_url: {file: dsn}
replication_url:
  file: dsn
ops_token: {file: ops}
smtp_url: {file: mail}
jwt_secret: {file: jwt}
publication: {file: once}
sources: [{name: s, table: a.b}]
subscribers:
  - &first
    name: one
    kind: recording
    secret: {file: key}
    headers: {Authorization: {file: token}, X-Plain: plain}
  - <<: *first
    name: more
    secret:
      - {file: key}
      - whsec_fixed
`)
	for _, name := range []string{"dsn", "once", "key", "token", "ops", "mail", "jwt"} {
		write(name, name+" before\r\n")
	}
	got, err := parse(t, "", map[string]string{"WALPOST_CONFIG": path, "WALPOST_DATABASE_URL": ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dsn", "once", "key", "token", "ops", "mail", "jwt"} {
		write(name, name+" after\n")
	}
	o, one, more := got.options, got.flow.Subscribers[0], got.flow.Subscribers[1]
	for what, test := range map[string]struct {
		secret      Secret
		start, want string
	}{
		"database_url":    {o.DatabaseURL, "dsn before", "dsn after"},
		"replication_url": {o.ReplicationURL, "dsn before", "dsn after"},
		"ops_token":       {o.OpsToken, "ops before", "ops after"},
		"smtp_url":        {o.SMTPURL, "mail before", "mail after"},
		"jwt_secret":      {o.JWTSecret, "jwt before", "jwt after"},
		"another option":  {Secret(o.Publication), "once before", "once before"},
		"a secret":        {sent(one).Secret[0], "key before", "key after"},
		"a header":        {sent(one).Headers["Authorization"], "token before", "token after"},
		"a plain header":  {sent(one).Headers["X-Plain"], "plain", "plain"},
		"a merged header": {sent(more).Headers["Authorization"], "token before", "token after"},
		"one of a list":   {sent(more).Secret[0], "key before", "key after"},
		"another of them": {sent(more).Secret[1], "whsec_fixed", "whsec_fixed"},
	} {
		if got := test.secret.Reveal(); got != test.want {
			t.Errorf("%s reveals %q, want %q", what, got, test.want)
		}
		if got := safefile.AtStart(test.secret.Live()); got != test.start {
			t.Errorf("%s was %q at the start, want %q", what, got, test.start)
		}
		if got := fmt.Sprintf("%s %v %q", test.secret, test.secret, test.secret); strings.Contains(got, "before") || strings.Contains(got, folder) {
			t.Errorf("%s prints %s", what, got)
		}
	}
}

func TestParse_refusesUnsetReferencesAndMissingFiles(t *testing.T) {
	_, err := parse(t, "slot: walpost${NOT_SET}\n\nops_token: {file: /nowhere/token}\n", nil)
	wantProblems(t, err, "yaml:1: the environment variable NOT_SET is not set", "yaml:3: open /nowhere/token")
	_, err = parse(t, "", nil, "--config=/nowhere/walpost.yaml")
	wantProblems(t, err, "configuration file /nowhere/walpost.yaml does not exist")
}

// F-60: a message about a broken file shows keys and places, never values.
func TestParse_neverShowsAValueOfABrokenFile(t *testing.T) {
	const password = `p@ss/w#rd%41?&:'"\ {}`
	for name, file := range map[string]string{
		"broken next to it": "replication_url: 'postgres://app:" + password + "\n: {",
		"broken in it":      "replication_url: \"postgres://app:" + password + "\"\n",
		"unknown key":       "pasword: " + password + "\n",
		"unknown nested":    "subscribers: [{name: analytics, secert: p@ss}]\n",
		"of a wrong kind":   "subscribers: p@ss\n",
		"of two values":     "ops_token: [p@ss, p@ss]\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, file, nil)
			if err == nil {
				t.Fatal("a broken file was taken")
			}
			for _, piece := range []string{"p@ss", "ss/w", "w#rd", "rd%41"} {
				if strings.Contains(err.Error(), piece) {
					t.Errorf("the error has %q in it: %v", piece, err)
				}
			}
		})
	}
}

func TestParse_leavesTheFileAloneForCommandsWithoutOne(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile(DefaultFile, []byte("api_listen: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var cli grammar
	parser, err := NewParser(&cli, lookupIn(map[string]string{"WALPOST_API_LISTEN": ":0"}), testKinds())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = parser.Parse([]string{"demo"}); err != nil {
		t.Fatal(err)
	}
	if got, want := cli.Demo.APIListen, ":0"; got != want {
		t.Errorf("listens on %q, want %q", got, want)
	}
	parser, _ = NewParser(&cli, lookupIn(nil), testKinds())
	_, err = parser.Parse([]string{"relay", "--database-url=postgres://db/app"})
	wantProblems(t, err, "walpost.yaml:1: api_listen: \"nonsense\" is not an address")
}

// S-15: what is shown is a file to start from: it has no secret, and nothing in the place of one that could be sent.
func TestShow_writesAFileThatReadsTheSame(t *testing.T) {
	const file = "slot: other\nsubscribers:\n  - name: analytics\n    kind: recording\n    secret: [hush, hush]\n    headers: {X-Api-Key: hush}\n"
	env := map[string]string{"WALPOST_DRAIN": "5s", "WALPOST_OPS_TOKEN": "hush"}
	got, err := parse(t, file, env, "--publication=pub")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := got.parser.Show(&shown, got.ctx); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"slot: other #", "walpost.yaml:1\n", "publication: pub # --publication\n", "drain: 5s # WALPOST_DRAIN\n",
		"wal_budget: auto\n", "  events: 10000\n", "retention: 168h\n", "database_url: ${WALPOST_DATABASE_URL} # WALPOST_DATABASE_URL\n",
		"ops_token: ${WALPOST_OPS_TOKEN} #", "- ${ANALYTICS_SECRET}\n", "- ${ANALYTICS_SECRET_2}\n", "X-Api-Key: ${ANALYTICS_X_API_KEY}\n",
	} {
		if !strings.Contains(shown.String(), line) {
			t.Errorf("%q is not shown in\n%s", line, shown.String())
		}
	}
	var asJSON strings.Builder
	if err := got.parser.ShowJSON(&asJSON, got.ctx); err != nil {
		t.Fatal(err)
	}
	if all := shown.String() + asJSON.String(); strings.Contains(all, "hush") || strings.Contains(all, "app:pw") {
		t.Errorf("a secret is shown in\n%s", all)
	}
	if strings.Contains(shown.String(), Mask) {
		t.Errorf("asterisks are shown that could be sent:\n%s", shown.String())
	}
	if _, err := parse(t, shown.String(), nil); err == nil || !strings.Contains(err.Error(), "ANALYTICS_SECRET_2 is not set") {
		t.Errorf("a file that is not filled in is taken: %v", err)
	}
	again, err := parse(t, shown.String(), map[string]string{
		"WALPOST_OPS_TOKEN": "new", "ANALYTICS_SECRET": "new", "ANALYTICS_SECRET_2": "newer", "ANALYTICS_X_API_KEY": "key"})
	if err != nil {
		t.Fatalf("what is shown does not read: %v\n%s", err, shown.String())
	}
	if again.options.Slot != "other" || again.flow.Subscribers[0].Name != "analytics" || again.flow.Sources[0].Retention == 0 {
		t.Errorf("reads as %+v", again)
	}
	if got := sent(again.flow.Subscribers[0]); got.Secret[1].Reveal() != "newer" || got.Headers["X-Api-Key"].Reveal() != "key" {
		t.Error("a secret that was filled in is not read")
	}
}

// S-15
func TestParse_refusesTheMaskOfASecret(t *testing.T) {
	_, err := parse(t, "smtp_url: '********'\nsubscribers:\n  - name: analytics\n    kind: recording\n    headers: {Authorization: 'Bearer ********'}\n", nil)
	wantProblems(t, err, "yaml:1: ******** stands for a secret that was not printed", "yaml:5: ******** stands for a secret that was not printed")
	_, err = parse(t, "", map[string]string{"WALPOST_OPS_TOKEN": Mask})
	wantProblems(t, err, "WALPOST_OPS_TOKEN: ******** stands for a secret that was not printed")
}

// S-05: a file that someone left in the working directory decides nothing.
func TestParse_usesAFoundFileOnlyIfItIsOurs(t *testing.T) {
	for _, test := range []struct {
		name, says string
		change     func(t *testing.T, folder, file string) error
	}{
		{"ours", "", func(*testing.T, string, string) error { return nil }},
		{"readable by all", "", func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o644) }},
		{"writable by its group", "can be written by others", func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o664) }},
		{"writable by all", "can be written by others", func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o606) }},
		{"in a folder like /tmp", "can be written by others", func(_ *testing.T, folder, _ string) error { return os.Chmod(folder, 0o777|os.ModeSticky) }},
		{"of another user", "belongs to uid 12345", func(_ *testing.T, _, file string) error { return os.Lchown(file, 12345, 12345) }},
		{"in a folder of another user", "belongs to uid 12345", func(_ *testing.T, folder, _ string) error { return os.Lchown(folder, 12345, 12345) }},
		{"a link to one of another user", "belongs to uid 12345", func(t *testing.T, _, file string) error {
			target := filepath.Join(t.TempDir(), "theirs.yaml")
			if err := os.Rename(file, target); err != nil {
				return err
			}
			if err := os.Lchown(target, 12345, 12345); err != nil {
				return err
			}
			return os.Symlink(target, file)
		}},
		{"a link of another user", "belongs to uid 12345", func(t *testing.T, _, file string) error {
			target := filepath.Join(t.TempDir(), "ours.yaml")
			if err := os.Rename(file, target); err != nil {
				return err
			}
			if err := os.Symlink(target, file); err != nil {
				return err
			}
			return os.Lchown(file, 12345, 12345)
		}},
		{"a link to nowhere", "no such file", func(_ *testing.T, _, file string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink("/nowhere/walpost.yaml", file)
		}},
	} {
		folder := t.TempDir()
		t.Chdir(folder)
		file := filepath.Join(folder, DefaultFile)
		if err := os.WriteFile(file, []byte("slot: found\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := test.change(t, folder, file); err != nil {
			if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
				continue // only root can give a file away; CI and the container of the tests are root
			}
			t.Fatal(err)
		}
		got, err := parse(t, "", nil)
		switch {
		case test.says == "" && (err != nil || got.options.Slot != "found" || !got.parser.Found):
			t.Errorf("%s: slot %q, %v", test.name, got.options.Slot, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "--config")):
			t.Errorf("%s: slot %q, %v; want %q", test.name, got.options.Slot, err, test.says)
		}
		if test.says != "" && test.name != "a link to nowhere" {
			// Who names it has decided.
			if got, err := parse(t, "", map[string]string{"WALPOST_CONFIG": file}); err != nil || got.options.Slot != "found" || got.parser.Found {
				t.Errorf("%s, by its name: slot %q, %v", test.name, got.options.Slot, err)
			}
		}
	}
}

func TestParse_readsColumnsAndHeadersOfASource(t *testing.T) {
	const file = `
sources:
  - name: payments
    table: '"Domain Events"."Out.Box"'
    columns: {id: payload.event_id, order: [aggregate_id, revision], key: Key}
    headers: {org_id: Org}
subscribers: [{name: copy, kind: recording}]
`
	got, err := parse(t, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	source := got.flow.Sources[0]
	schema, table, ok := SplitTable(source.Table)
	if schema != "Domain Events" || table != "Out.Box" || !ok {
		t.Errorf("table: got %q, %q, %t", schema, table, ok)
	}
	if source.Columns["id"].One() != "payload.event_id" || !slices.Equal(source.Columns["order"], Columns{"aggregate_id", "revision"}) || source.Headers["org_id"] != "Org" {
		t.Errorf("got %+v", source)
	}
	var shown strings.Builder
	if err := got.parser.Show(&shown, got.ctx); err != nil {
		t.Fatal(err)
	}
	again, err := parse(t, shown.String(), nil)
	if err != nil || !reflect.DeepEqual(again.flow.Sources, got.flow.Sources) {
		t.Errorf("what is shown reads as %+v, %v\n%s", again.flow.Sources, err, shown.String())
	}

	_, err = parse(t, `
sources:
  - {name: a, table: a.b.c, columns: {key: [x, y]}}
  - {name: b, table: '"a.b"', headers: {"": x}}
  - {name: c, table: 'public."o"', headers: {h: ''}}
  - {name: d, table: public.o, columns: {order: []}}
  - {name: e, messages: m, headers: {h: c}}
subscribers: [{name: copy, kind: recording}]
`, nil)
	wantProblems(t, err, `"a.b.c" is not schema.table`, "key: one column is expected", `"\"a.b\"" is not schema.table`,
		`"" is no name of a header`, `h: "" is not a column`, `"public.o" already belongs to another source`, "columns, headers, rows")
}

func TestParse_compilesTheSchemaOfASource(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := func(schema string) map[string]string {
		return map[string]string{"WALPOST_CONFIG": write("w.yaml", "sources: [{name: s, table: a.b, schema: "+schema+"}]\nsubscribers: [{name: copy, kind: recording}]\n")}
	}
	good := write("good.json", `{"type": "object"}`)
	write("bad.json", `{"$ref": "https://shop.example/x.json"}`)
	got, err := parse(t, "", file("good.json"))
	if err != nil || got.flow.Sources[0].Schema != good {
		t.Errorf("got %+v, %v, want the path of the schema, seen from the configuration", got.flow.Sources, err)
	}
	_, err = parse(t, "", file("bad.json"))
	wantProblems(t, err, "schema: "+filepath.Join(folder, "bad.json")+" is no JSON Schema: it refers to https://shop.example/x.json")
	_, err = parse(t, "", file("nowhere.json"))
	wantProblems(t, err, "nowhere.json")
}

// A key of another kind has no effect, and looks as if it had one.
func TestParse_refusesKeysOfAnotherKind(t *testing.T) {
	kinds := testKinds()
	kinds["file"] = Kind{Options: func() Options { return new(pathOptions) }}
	kinds["achievements"] = Kind{Options: func() Options { return new(formatOptions) }}
	const file = `
subscribers:
  - name: first
    kind: file
    url: https://billing.example/hooks
  - {name: second, kind: achievements, format: payload, path: /x}
  - {name: analytics}
`
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var cli grammar
	parser, err := NewParser(&cli, lookupIn(map[string]string{"WALPOST_CONFIG": path}), kinds, kong.Name("walpost"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse([]string{"relay"})
	wantProblems(t, err, path+`:5: subscriber "first": url: kind file has no such key; these have: recording, sending`,
		path+`:6: subscriber "second": path: kind achievements has no such key; these have: file`)
}
