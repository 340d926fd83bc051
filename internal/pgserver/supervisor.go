package pgserver

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// A supervisor is a small shell process that outlives us. It holds the read end of a pipe whose only
// write end is ours: however we end, kill -9 included, the pipe is closed, and the supervisor then
// stops the server and removes the folder. Ending it in the regular way is closing the pipe, too, so
// the way of the crash is walked at every stop.
//
// Each line that comes through the pipe is the pid of the postmaster to stop, or empty for none. The
// server is stopped with SIGQUIT (immediate shutdown): its data is about to be removed. SIGCONT goes
// first, it may be frozen; children that do not react are killed by the postmaster after five seconds,
// so it gets ten.
type supervisor struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

const supervise = `
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
	kill -CONT "$pid" 2>/dev/null
	kill -QUIT "$pid" 2>/dev/null
	tries=0
	while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.1 2>/dev/null || sleep 1
	done
	if [ "$tries" -eq 100 ]; then kill -KILL "$pid" 2>/dev/null; sleep 1; fi
fi
for wait in 1 1 1; do # an initdb that outlived us may still be writing
	rm -rf -- "$1" 2>/dev/null && exit 0
	sleep "$wait"
done
rm -rf -- "$1"
`

// startSupervisor starts the supervisor of the server in dir.
func startSupervisor(dir string) (*supervisor, error) {
	cmd := exec.Command("sh", "-c", supervise, "walpost-pgserver", dir)
	cmd.Dir = "/" // not in a folder that someone wants to remove or unmount
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for us, not for it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("supervisor of %s: %w", dir, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("supervisor of %s: %w", dir, err)
	}
	return &supervisor{cmd, pipe}, nil
}

// watch tells which postmaster to stop; 0 is none.
func (s *supervisor) watch(pid int) error {
	line := "\n"
	if pid != 0 {
		line = fmt.Sprintf("%d\n", pid)
	}
	if _, err := io.WriteString(s.pipe, line); err != nil {
		return fmt.Errorf("supervisor of the server: %w", err)
	}
	return nil
}

// end closes the pipe and waits until the folder is gone.
func (s *supervisor) end() error {
	s.pipe.Close()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("supervisor of the server: %w", err)
	}
	return nil
}
