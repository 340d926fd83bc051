package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/backendstart/walpost/internal/config"
)

// listen opens the port before anything is started that would have to be stopped again. An address that
// is taken or wrong is a matter of configuration.
func listen(ctx context.Context, option, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, config.Invalid(fmt.Errorf("listen on %s: another program has this port: choose another one with --%s (port 0 takes a free one)", address, option))
	case errors.Is(err, syscall.EACCES):
		return nil, config.Invalid(fmt.Errorf("listen on %s: this user may not: choose a port above 1023 with --%s", address, option))
	case err != nil:
		return nil, config.Invalid(fmt.Errorf("%w: change it with --%s", err, option))
	}
	return listener, nil
}

// listenOps opens the address of the ops API: host:port, or a socket.
func listenOps(ctx context.Context, address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, "unix:")
	if !isSocket {
		return listen(ctx, "ops-listen", address)
	}
	listener, err := listenSocket(ctx, path)
	if err != nil {
		return nil, config.Invalid(fmt.Errorf("listen on %s: %w: choose another path with --ops-listen", address, err))
	}
	return listener, nil
}

// addressOf is where other machines reach the ops API behind a listener: what the configuration says, else where it listens,
// under the name of this machine where that is every address; "" where it is a socket.
func addressOf(listener net.Listener, configured string) string {
	at, isTCP := listener.Addr().(*net.TCPAddr)
	switch {
	case configured != "" || !isTCP:
		return configured
	case !at.IP.IsUnspecified():
		return at.String()
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return net.JoinHostPort(name, strconv.Itoa(at.Port))
}

// socket is a listener whose file goes with it.
type socket struct {
	net.Listener
	path string
	made fs.FileInfo
}

// listenSocket makes a socket that its user alone can reach. It comes to life in a folder of mode 0700 and is moved
// to its path as a whole: at no moment can another user connect, and a socket that a killed process left is replaced.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if err := checkSocketPath(ctx, path); err != nil {
		return nil, err
	}
	nursery, err := os.MkdirTemp(filepath.Dir(path), ".walpost-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(nursery)
	temporary := filepath.Join(nursery, "s")
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", temporary)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // it would remove the path before the move
	s := &socket{Listener: listener, path: path}
	err = os.Chmod(temporary, 0o600)
	if err == nil {
		s.made, err = os.Lstat(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		listener.Close()
		return nil, err
	}
	return s, nil
}

// checkSocketPath refuses a path that must not be replaced: a file of another kind, or a socket that answers.
func checkSocketPath(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket")
	}
	dialer := net.Dialer{Timeout: time.Second}
	connection, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		connection.Close()
		return errors.New("another program answers there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("there is a socket, and whether a program uses it is unknown: %w", err)
	}
	return nil
}

// Close implements net.Listener. The path may be another relay's by now.
func (s *socket) Close() error {
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.made) {
		os.Remove(s.path)
	}
	return s.Listener.Close()
}

// localURL is how to reach a listener from this machine, also when it listens everywhere.
func localURL(listener net.Listener) string {
	if s, ok := listener.(*socket); ok {
		return "unix:" + s.path
	}
	address := *listener.Addr().(*net.TCPAddr)
	if address.IP.IsUnspecified() {
		address.IP = net.IPv4(127, 0, 0, 1)
	}
	return "http://" + address.String()
}
