package pgserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// stepDown returns the user to run the server as: Postgres refuses root. nil is our own.
func stepDown() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("run postgres: it refuses root, and there is no user postgres or nobody to step down to: run as another user")
}

// makeDir makes the server's folder, which only the server's user (and root) may enter. "" is a new one in the folder that
// WALPOST_TEST_PG_DIR names, which tests set to one in memory, else in os.TempDir.
func makeDir(dir string, credential *syscall.Credential) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp(os.Getenv("WALPOST_TEST_PG_DIR"), "walpost-pg-")
	} else {
		if dir, err = filepath.Abs(dir); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if err != nil {
		return "", fmt.Errorf("make folder for postgres: %w", err)
	}
	if err := chown(dir, credential); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// writeFile writes a file that the server's user may read.
func (s *Server) writeFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("set up postgres: %w", err)
	}
	return chown(path, s.credential)
}

func chown(path string, credential *syscall.Credential) error {
	if credential == nil {
		return nil
	}
	if err := os.Chown(path, int(credential.Uid), int(credential.Gid)); err != nil {
		return fmt.Errorf("set up postgres: %w", err)
	}
	return nil
}

// children returns the processes whose parent is pid, from /proc where there is one and else from ps.
func children(pid int) ([]int, error) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is a constant and well formed
	var found []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid …"; the name may contain anything, so the last ")" counts.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			if err == nil {
				found = append(found, child)
			}
		}
	}
	if len(stats) > 0 {
		return found, nil
	}
	out, err := exec.Command("ps", "-axo", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes of postgres: ps: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		var child, parent int
		if _, err := fmt.Sscan(line, &child, &parent); err == nil && parent == pid {
			found = append(found, child)
		}
	}
	return found, nil
}
