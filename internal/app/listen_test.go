package app

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// leave makes a socket as a process leaves it that is killed.
func leave(t *testing.T, path string) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
}

func TestListenOps_replacesASocketThatIsLeftAndNothingElse(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "ops.sock")
	leave(t, path)
	first, err := listenOps(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v, want srw-------", info.Mode(), err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 1 {
		t.Errorf("next to the socket there are %v", left)
	}
	go func() { // answers, as a relay does that runs
		for {
			connection, err := first.Accept()
			if err != nil {
				return
			}
			connection.Close()
		}
	}()
	if second, err := listenOps(t.Context(), "unix:"+path); err == nil || !strings.Contains(err.Error(), "another program answers") {
		t.Errorf("a socket in use is taken over: %v, %v", second, err)
	}
	first.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there after the stop")
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenOps(t.Context(), "unix:"+file); err == nil {
		t.Error("a file that is no socket is replaced")
	}
	if text, _ := os.ReadFile(file); string(text) != "precious" {
		t.Errorf("the file says %q", text)
	}
}

func TestListenOps_leavesTheSocketOfItsSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops.sock")
	first, err := listenOps(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := listenOps(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close()
	if connection, err := net.Dial("unix", path); err != nil {
		t.Errorf("the end of the first took the socket of the second away: %v", err)
	} else {
		connection.Close()
	}
}

// Who can connect to a socket is decided when the connection is made, so its mode must never have been another one.
func TestListenOps_isNeverOpenToOthers(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "ops.sock")
	listener, err := listenOps(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("with umask 0 the socket is %v, %v", info.Mode(), err)
	}
}
