package cli

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// typescript is what a terminal has been sent.
type typescript struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *typescript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *typescript) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

// The program, at a real terminal, with a relay that runs: it shows the subscribers, and ends with q, and the terminal is
// as it was.
func TestTop_runsAtATerminal(t *testing.T) {
	db := testdb.New(t)
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}
	relay := start(t, nil, env, "relay", "--ops-listen=127.0.0.1:0", "--log-format=json")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	address := regexp.MustCompile(`"ops":"(http://[^"]+)"`).FindStringSubmatch(relay.stderr.String())
	if address == nil {
		t.Fatalf("the log does not say where the ops API is:\n%s", relay.stderr.String())
	}
	p := newTerminal(t, 80)
	top := exec.Command(testprogram.Binary(t), "top", "--every=500ms", "--ops-url="+address[1])
	top.Env = append(top.Environ(), "TERM=xterm-256color")
	top.Stdin, top.Stdout, top.Stderr = p.File, p.File, p.File
	top.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := top.Start(); err != nil {
		t.Fatal(err)
	}
	shown := &typescript{}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := p.master.Read(buffer)
			_, _ = shown.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	for _, want := range []string{"READY, streaming", "achievements", "recommendations", "leader "} {
		waitFor(t, "the screen to show "+want, func() bool { return shown.shows(want) })
	}
	if _, err := p.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := top.Wait(); err != nil {
		t.Errorf("q ends it with %v", err)
	}
	waitFor(t, "the terminal to be as it was", func() bool { return shown.shows("\x1b[?1049l") })
	relay.stop()
	<-relay.exited
}

func TestTop_wantsATerminalAndARelay(t *testing.T) {
	code, _, stderr := execute(t, nil, "top", "--ops-url=http://127.0.0.1:1")
	if code != exitUsage || !strings.Contains(stderr, "walpost status") {
		t.Errorf("without a terminal: %d %s", code, stderr)
	}
	if code, _, stderr := execute(t, nil, "top", "--every=1ms"); code != exitUsage || !strings.Contains(stderr, "500ms") {
		t.Errorf("every millisecond: %d %s", code, stderr)
	}
}
