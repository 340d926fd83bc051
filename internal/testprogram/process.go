// Package testprogram runs the program for tests as others meet it: built by the go command, started as
// a process of its own, spoken to over HTTP, stopped and killed by signals. What is counted afterwards is
// in effects.go. Tests that need no process of their own call app.Main.
package testprogram

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long something is waited for that has to come.
const patience = time.Minute

// binary builds the program into the folder of Main, once per test binary. Global, because several tests
// share what takes ten seconds to link; Main sets it before any test runs.
var binary = func() (string, error) {
	return "", errors.New("testprogram.Main has not been called: add a TestMain with os.Exit(testprogram.Main(m))")
}

// Main runs the tests of a test binary that uses Start, and removes the built program behind them. It
// returns the exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "walpost-program-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "folder for the program:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	module, err := os.Getwd() // now, because tests may change it
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binary = sync.OnceValues(func() (string, error) { return build(module, filepath.Join(dir, "walpost")) })
	return m.Run()
}

// build has the race detector look at the program where it looks at the test.
func build(module, path string) (string, error) {
	args := []string{"build", "-buildvcs=false", "-o", path}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	command := exec.Command("go", append(args, "github.com/backendstart/walpost/cmd/walpost")...)
	command.Dir = module
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build walpost: %w\n%s", err, out)
	}
	return path, nil
}

// Process is a running program. Its methods may be called from several goroutines, but those that fail
// the test only from the test's own.
type Process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	output output
	ended  chan struct{} // closed when the process has ended and cmd.ProcessState is set
}

// Binary builds walpost at the first call and returns its path, for a test that runs it to its end.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Start builds walpost at the first call and starts it with a log in JSON and no WALPOST_ variables but
// those of env (NAME=value). The process is killed when the test ends.
func Start(t testing.TB, env []string, args ...string) *Process {
	t.Helper()
	return StartBinary(t, Binary(t), env, args...)
}

// StartBinary is Start for another binary.
func StartBinary(t testing.TB, path string, env []string, args ...string) *Process {
	t.Helper()
	ctx, cancel := beforeTimeout(t)
	p := &Process{t: t, name: "walpost " + strings.Join(args, " "), ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, path, args...)
	p.cmd.Dir = t.TempDir() // no walpost.yaml of someone else
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALPOST_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ProcessState says how it ended
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
		if out := p.Output(); strings.Contains(out, "DATA RACE") {
			t.Errorf("%s: %s", p.name, out)
		} else if t.Failed() {
			t.Logf("%s\n%s", p.name, out[max(0, len(out)-4000):])
		}
	})
	return p
}

// beforeTimeout ends shortly before go test gives up on the binary: no cleanup runs then.
func beforeTimeout(t testing.TB) (context.Context, context.CancelFunc) {
	if timed, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, set := timed.Deadline(); set {
			return context.WithDeadline(context.Background(), deadline.Add(-5*time.Second))
		}
	}
	return context.WithCancel(context.Background())
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what the process has written so far, to both streams.
func (p *Process) Output() string { return p.output.String() }

// Await waits until the process has written something that matches, and returns what the first group
// caught. A process that ends before, or takes a minute, fails the test.
func (p *Process) Await(pattern string) string {
	p.t.Helper()
	var caught []string
	re := regexp.MustCompile(pattern)
	Eventually(p.t, p.name+" to write "+pattern, func() bool {
		if caught = re.FindStringSubmatch(p.Output()); caught == nil && p.hasEnded() {
			p.t.Fatalf("%s ended (%v) before it wrote %s", p.name, p.cmd.ProcessState, pattern)
		}
		return caught != nil
	})
	return caught[len(caught)-1]
}

// AwaitStreaming waits until a relay reads the slot, and returns the URL of its ops server.
func (p *Process) AwaitStreaming() (ops string) {
	p.t.Helper()
	p.Await(`"msg":"streaming"`)
	return p.Await(`"ops":"(http://[^"]+)"`)
}

// AwaitAPI waits until the completions API serves, and returns its URL.
func (p *Process) AwaitAPI() string {
	p.t.Helper()
	return p.Await(`"msg":"completions API is ready","url":"(http://[^"]+)"`)
}

// Kill is kill -9; it returns when the process is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// Stop is SIGTERM. It returns when the process has ended, and how long that took. Any exit code but 0
// fails the test.
func (p *Process) Stop() time.Duration {
	p.t.Helper()
	begin := time.Now()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s has not ended %s after SIGTERM", p.name, patience)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("%s: exit code %d after SIGTERM, want 0", p.name, code)
	}
	return time.Since(begin)
}

func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Eventually waits up to a minute until so is true; what says for what, in the message of the failure.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	Within(t, patience, what, so)
}

// Within is Eventually with another patience.
func Within(t testing.TB, patience time.Duration, what string, so func() bool) {
	t.Helper()
	begin := time.Now()
	for !so() {
		waited := time.Since(begin)
		if waited > patience {
			t.Fatalf("waited %s in vain for %s", patience, what)
		}
		// Who has waited for long is asked less often, so that asking does not slow down what is waited for.
		Pause(t, min(10*time.Millisecond+waited/50, time.Second))
	}
}

// Pause lets time pass in which the program is to do something of its own, up to a random moment for
// example. It is no way to wait for something.
func Pause(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("the test was ended while it paused")
	}
}

// output is a buffer that a process writes to and a test reads.
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
