package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A child is a process of the program that is measured. It ends when we do: it watches its standard input.
type child struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	lines  chan finished // closed at the end of its output
	stderr *output
	exited chan struct{}
}

// start runs the command bench-part with args. The environment has no WALPOST_ variables but those of env.
func (l *lab) start(ctx context.Context, env []string, args ...string) (*child, error) {
	c := &child{
		name: "walpost " + strings.Join(args, " "), lines: make(chan finished, 16),
		stderr: newOutput(), exited: make(chan struct{}),
	}
	c.cmd = exec.CommandContext(ctx, l.Program, append([]string{"bench-part"}, args...)...)
	c.cmd.Dir = l.dir // no walpost.yaml of someone else
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "WALPOST_") {
			c.cmd.Env = append(c.cmd.Env, variable)
		}
	}
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.Stderr = c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for us
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	go func() {
		defer close(c.exited)
		defer close(c.lines)
		for reader := bufio.NewReader(stdout); ; {
			text, err := reader.ReadBytes('\n')
			if err != nil {
				break
			}
			var line finished
			if json.Unmarshal(text, &line) == nil {
				c.lines <- line
			}
		}
		_ = c.cmd.Wait() // ProcessState says how it ended
	}()
	return c, nil
}

// patience is how long something may take that has to come.
const patience = 15 * time.Minute

// finishedAll waits until so many subscribers have handled everything, and returns what they said.
func (c *child) finishedAll(ctx context.Context, subscribers int) ([]finished, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all []finished
	for len(all) < subscribers {
		select {
		case line, ok := <-c.lines:
			if !ok {
				<-c.exited
				return nil, fmt.Errorf("%s ended (%v) before it had delivered everything; it said last: %s", c.name, c.cmd.ProcessState, c.stderr.tail())
			}
			all = append(all, line)
		case <-ctx.Done():
			return nil, fmt.Errorf("%s has not delivered everything: %w; it said last: %s", c.name, context.Cause(ctx), c.stderr.tail())
		}
	}
	return all, nil
}

// says waits until the log has a line that matches, and returns what the first group caught.
func (c *child) says(ctx context.Context, pattern string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	re := regexp.MustCompile(pattern)
	for {
		written := c.stderr.written()
		if found := re.FindStringSubmatch(c.stderr.String()); found != nil {
			return found[len(found)-1], nil
		}
		select {
		case <-written:
		case <-c.exited:
			return "", fmt.Errorf("%s ended (%v) before it said %s; it said last: %s", c.name, c.cmd.ProcessState, pattern, c.stderr.tail())
		case <-ctx.Done():
			return "", fmt.Errorf("%s has not said %s: %w; it said last: %s", c.name, pattern, context.Cause(ctx), c.stderr.tail())
		}
	}
}

// stop ends the process softly, so that a profile of it is written, and after a while at once.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-c.exited:
	case <-time.After(30 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
	_ = c.stdin.Close()
}

// peak is the most memory in bytes that the process has had resident so far.
// (man 5 proc, VmHWM; ru_maxrss of getrusage would begin with what the parent had at the fork)
func (c *child) peak() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		return 0, errors.New("no VmHWM in /proc")
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	return kilobytes << 10, err
}

// cpu is the processor time of the process so far, in steps of 10 ms. (man 5 proc, utime and stime)
func (c *child) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// "pid (name) state …": the name may contain anything, so counting begins behind the last ")".
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, errors.New("too few fields in /proc")
	}
	var ticks int64
	for _, field := range fields[user : system+1] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// output keeps the end of what a process writes.
type output struct {
	mu      sync.Mutex
	text    []byte        // guarded by mu
	changed chan struct{} // closed and replaced at each write; guarded by mu
}

// kept is how much of a log is kept: what it says at its start and its last words are in it.
const kept = 64 << 10

func newOutput() *output { return &output{changed: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-kept):]
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

// written is closed at the next write.
func (o *output) written() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

func (o *output) tail() string {
	text := strings.TrimSpace(o.String())
	return text[max(0, len(text)-1000):]
}
