package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/app"
)

// output is a buffer that a running program writes to and a test reads.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// program is a run of Main.
type program struct {
	stdout, stderr output
	stop           context.CancelFunc
	exited         chan int
}

// start runs the program with no environment but env. The test ends it if no one else does.
func start(t *testing.T, kinds app.Kinds, env map[string]string, args ...string) *program {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &program{stop: stop, exited: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.exited <- Main(ctx, Process{
			Args:   args,
			Lookup: func(name string) (string, bool) { value, ok := env[name]; return value, ok },
			Stdout: &p.stdout, Stderr: &p.stderr, Subscribers: kinds,
		})
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if t.Failed() {
			t.Logf("walpost %s\n%s\n%s", strings.Join(args, " "), p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// execute runs the program to its end.
func execute(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, nil, env, args...)
	code = <-p.exited
	return code, p.stdout.String(), p.stderr.String()
}

func TestMain_exitCodeTellsUsageFromFailure(t *testing.T) {
	t.Chdir(t.TempDir())
	const noOne = "postgres://walpost@127.0.0.1:1/none?connect_timeout=2"
	secret := map[string]string{"WALPOST_JWT_SECRET": strings.Repeat("s", 32)}
	for _, test := range []struct {
		args string
		env  map[string]string
		want int
		says string
	}{
		{"--help", nil, exitFine, "walpost demo "},
		{"owed list --key=a\xff --database-url=" + noOne, nil, exitUsage, "no valid UTF-8"},
		{"owed discard --subscriber=a --database-url=" + noOne + " --why=" + strings.Repeat("x", 2001), nil, exitUsage, "at most 2000 bytes"},
		{"", nil, exitFine, "Commands:"},
		{"relay --help", nil, exitFine, "(WALPOST_SLOT"},
		{"version", nil, exitFine, "walpost "},
		{"config", nil, exitFine, "The configuration is fine (no file): sources 1, subscribers 4"},
		{"token --user=42", secret, exitFine, "ey"},
		{"migrate --database-url=" + noOne, nil, exitFailed, "127.0.0.1:1"},
		{"api --auth=dev --api-listen=127.0.0.1:0 --database-url=" + noOne, nil, exitFailed, "127.0.0.1:1"},
		{"relay --ops-listen=127.0.0.1:0 --database-url=" + noOne, nil, exitFailed, "127.0.0.1:1"},
		{"nonsense", nil, exitUsage, "unexpected argument nonsense (walpost --help shows"},
		{"relay", nil, exitUsage, "database_url is not set: try WALPOST_DATABASE_URL="},
		{"relay --database-url=x=y --slot=Big", nil, exitUsage, "not a slot name"},
		{"relay --config=nowhere.yaml", nil, exitUsage, "nowhere.yaml does not exist"},
		{"relay --database-url=" + noOne + " --ops-listen=203.0.113.1:0", nil, exitUsage, "--ops-listen"},
		{"token", secret, exitUsage, "--user"},
		{"token --user=0", secret, exitUsage, "not positive"},
		{"token --user=42", nil, exitUsage, "WALPOST_JWT_SECRET"},
		{"completion tcsh", nil, exitUsage, "tcsh"},
		{"owed --help", nil, exitFine, "walpost deadletters list"},
		{"subscribers forget --help", nil, exitFine, "--dry-run"},
		{"status", nil, exitUsage, "database_url is not set"},
		{"status --database-url=" + noOne, nil, exitFailed, "127.0.0.1:1"},
		{"deadletters redrive --help", nil, exitFine, "--dry-run"},
		{"owed redrive x", nil, exitUsage, "database_url is not set"},
		{"demo --rate=0", nil, exitUsage, "--rate"},
		{"demo --rate=NaN", nil, exitUsage, "--rate"},
		{"demo --pg-port=70000", nil, exitUsage, "--pg-port"},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, stdout, stderr := execute(t, test.env, strings.Fields(test.args)...)
			if code != test.want {
				t.Errorf("exit code %d, want %d", code, test.want)
			}
			said, other := stdout, stderr
			if code != exitFine {
				said, other = stderr, stdout
			}
			if !strings.Contains(said, test.says) || other != "" {
				t.Errorf("says %q and on the other side %q, want %q", said, other, test.says)
			}
		})
	}
}

// F-60: with a password of special characters the program either understands it or says how to write
// it, and no piece of it is printed. Port 1 refuses, so an understood one ends as a failure.
func TestMain_neverPrintsAPassword(t *testing.T) {
	t.Chdir(t.TempDir())
	const password = `p@ss/w#rd%41?&:'"\ {}`
	encoded := "p%40ss%2Fw%23rd%2541%3F%26%3A%27%22%5C%20%7B%7D"
	quoted := `p@ss/w#rd%41?&:\'"\\ {}`
	for name, test := range map[string]struct {
		dsn  string
		want int
	}{
		"raw in a URL":        {"postgres://app:" + password + "@127.0.0.1:1/app?connect_timeout=2", exitUsage},
		"@ alone":             {"postgres://app:p@ss@127.0.0.1:1/app?connect_timeout=2", exitUsage},
		"encoded":             {"postgres://app:" + encoded + "@127.0.0.1:1/app?connect_timeout=2", exitFailed},
		"quoted key=value":    {"host=127.0.0.1 port=1 user=app password='" + quoted + "' dbname=app connect_timeout=2", exitFailed},
		"unquoted key=value":  {"host=127.0.0.1 port=1 user=app password=" + password + " dbname=app", exitFailed},
		"port is no number":   {"postgres://app:" + encoded + "@127.0.0.1:port/app", exitUsage},
		"certificate is away": {"postgres://app:" + encoded + "@127.0.0.1:1/app?sslmode=verify-full&sslrootcert=/nowhere", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			for _, command := range []string{"api --auth=dev --api-listen=127.0.0.1:0", "relay --ops-listen=127.0.0.1:0", "migrate", "config --show"} {
				args := strings.Fields(command)
				for _, run := range []struct {
					env  map[string]string
					args []string
				}{
					{map[string]string{"WALPOST_DATABASE_URL": test.dsn}, args},
					{nil, append(args, "--database-url="+test.dsn)},
				} {
					code, stdout, stderr := execute(t, run.env, run.args...)
					if want := test.want; code != want && args[0] != "config" {
						t.Errorf("%s: exit code %d, want %d: %s", command, code, want, stderr)
					}
					for _, piece := range []string{"p@ss", "p%40ss", "ss/w", "w#rd", "w%23rd", "rd%41", "%2541"} {
						if strings.Contains(stdout+stderr, piece) {
							t.Errorf("%s: prints %q: %s%s", command, piece, stdout, stderr)
						}
					}
				}
			}
		})
	}
}

func TestMain_printsJSONForPrograms(t *testing.T) {
	t.Chdir(t.TempDir())
	env := map[string]string{"WALPOST_JWT_SECRET": strings.Repeat("s", 32)}
	for args, key := range map[string]string{
		"version --json": "version", "token --user=42 --json": "token", "config --show --json": "subscribers",
	} {
		code, stdout, stderr := execute(t, env, strings.Fields(args)...)
		var object map[string]any
		if err := json.Unmarshal([]byte(stdout), &object); err != nil || code != exitFine {
			t.Errorf("walpost %s: exit code %d, %v: %s%s", args, code, err, stdout, stderr)
		}
		if _, ok := object[key]; !ok {
			t.Errorf("walpost %s has no %q: %s", args, key, stdout)
		}
	}
}

func TestMain_takesNoAPIWithoutAKeyNorDevBeyondLoopback(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, says := range map[string]string{
		"api --api-listen=127.0.0.1:0":                "no key to verify tokens with",
		"api --api-listen=127.0.0.1:0 --jwt-secret=x": "at least 32",
		"api --api-listen=:0 --auth=dev":              "not a loopback address",
	} {
		code, _, stderr := execute(t, map[string]string{"WALPOST_DATABASE_URL": "postgres://walpost@127.0.0.1:1/none"}, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("walpost %s: exit code %d, says %q, want %d and %q", args, code, stderr, exitUsage, says)
		}
	}
}

func TestMain_saysWhichFlagChangesAPortThatIsTaken(t *testing.T) {
	t.Chdir(t.TempDir())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	for args, says := range map[string]string{
		"api --database-url=host=h --api-listen=" + address:                        "--api-listen",
		"relay --database-url=host=h --ops-listen=" + address:                      "--ops-listen",
		"demo --ops-listen=127.0.0.1:0 --api-listen=" + address:                    "--api-listen",
		"demo --api-listen=127.0.0.1:0 --ops-listen=" + address:                    "--ops-listen",
		"demo --api-listen=127.0.0.1:0 --ops-listen=127.0.0.1:0 --pg-port=" + port: "--pg-port",
	} {
		code, _, stderr := execute(t, nil, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, says) || !strings.Contains(stderr, port) {
			t.Errorf("walpost %s: exit code %d, says %q, want %d and %s", args, code, stderr, exitUsage, says)
		}
	}
}

func TestMain_sendsNoOneOnWithAnOldSchema(t *testing.T) {
	t.Chdir(t.TempDir())
	env := map[string]string{"WALPOST_DATABASE_URL": emptyDatabase(t)}
	for _, args := range []string{"api --auth=dev --api-listen=127.0.0.1:0", "relay --ops-listen=127.0.0.1:0"} {
		code, _, stderr := execute(t, env, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, "walpost migrate") {
			t.Errorf("walpost %s: exit code %d, says %q", args, code, stderr)
		}
	}
	if code, _, stderr := execute(t, env, "migrate"); code != exitFine {
		t.Fatalf("migrate: exit code %d: %s", code, stderr)
	}
	relay := start(t, nil, env, "relay", "--ops-listen=127.0.0.1:0", "--log-format=text")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), "msg=streaming") })
	relay.stop()
	if code := <-relay.exited; code != exitFine {
		t.Errorf("exit code after a soft stop is %d, want %d", code, exitFine)
	}
}

func TestCompletion_offersCommandsAndFlagsInBash(t *testing.T) {
	_, script, _ := execute(t, nil, "completion", "bash")
	for typed, want := range map[string]string{
		"walpost rel":             "relay",
		"walpost demo --no":       "--no-traffic",
		"walpost relay --window-": "--window-events --window-bytes",
		"walpost completion f":    "fish",
		"walpost subs":            "subscribers",
		"walpost owed s":          "show",
		"walpost owed list --er":  "--error",
		"walpost deadletters x -": "",
	} {
		words := strings.Fields(typed)
		command := script + "COMP_WORDS=(" + typed + ")\nCOMP_CWORD=" + string(rune('0'+len(words)-1)) + "\n_walpost\necho ${COMPREPLY[@]}"
		got, err := exec.Command("bash", "-c", command).CombinedOutput()
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%q is completed to %q, %v, want %q", typed, got, err, want)
		}
	}
}

func TestCompletion_knowsEveryCommandInEveryShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, script, _ := execute(t, nil, "completion", shell)
		for _, word := range []string{"demo", "relay", "slot", "no-traffic", "fish", "deadletters", "resume", "dry-run"} {
			if code != exitFine || !strings.Contains(script, word) {
				t.Errorf("%s: exit code %d, %q is missing", shell, code, word)
			}
		}
	}
}

// waitFor asks again until it is so, or the test has taken too long.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		case <-tick.C:
		}
	}
}
