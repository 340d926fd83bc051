// Package pgserver runs a private Postgres server in a folder of its own, for the demo and for tests.
// It never touches a server that it did not start, and it leaves nothing behind: neither a process nor
// a folder, even if we are killed (see supervisor.go). It is no way to run Postgres for data that
// matters. Tests get databases from package testdb, which stands on this one.
package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPortTaken means that another program listens on the port that was asked for.
var ErrPortTaken = errors.New("port is taken")

// Options say how to make a server. The zero value is a server with the newest binaries that Find
// finds, in a temporary folder, on a free port.
type Options struct {
	// Bin is the folder with initdb and postgres; "" asks Find.
	Bin string
	// Dir is the folder to make the server in. It must not exist yet, and Stop removes it. "" is a new
	// folder below WALPOST_TEST_PG_DIR, else below os.TempDir.
	Dir string
	// Port is the TCP port on 127.0.0.1; 0 is a free one.
	Port int
	// Settings go into postgresql.conf, over our own: wal_level=logical and where to listen. Values are
	// plain, quoting is done here. "fsync": "off" is a good one for tests. With "ssl": "on" a certificate is made.
	Settings map[string]string
	// InitArgs are further arguments of initdb, for example "--wal-segsize=1".
	InitArgs []string
	// Log gets a debug line for what happens to the server; nil is silence. The server's own log is a
	// file, see Server.LogFile.
	Log *slog.Logger

	// Template is a server that Prepare made. Its cluster is copied, which takes a tenth of the time of initdb. Copies of
	// one template have one system identifier and one password; Bin and InitArgs are the template's.
	Template *Server

	primary *Server // whose cluster is copied for a standby
}

// A Server is a private Postgres server with a superuser "postgres" and a random password. It listens
// on 127.0.0.1 and on a Unix socket in its folder. Its methods may be called from several goroutines;
// those that change whether it runs take turns.
type Server struct {
	bin, dir   string
	port       int
	password   string
	log        *slog.Logger
	credential *syscall.Credential // the user that the server runs as; nil is ours
	supervisor *supervisor

	mu      sync.Mutex
	process *process // guarded by mu; nil while the server is down
	gone    bool     // guarded by mu; Stop was called
}

// process is one run of the postmaster.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended and was waited for
}

// Start makes a server and returns when it answers. The caller stops it with Stop. If ctx ends before,
// everything is removed again.
func Start(ctx context.Context, options Options) (*Server, error) {
	bin := options.Bin
	if options.Template != nil {
		bin = options.Template.bin
	}
	if bin == "" {
		var err error
		if bin, err = Find(); err != nil {
			return nil, err
		}
	}
	log := options.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if options.Port != 0 {
		if err := portFree(options.Port); err != nil { // before the second that initdb takes
			return nil, err
		}
	}
	s := &Server{bin: bin, port: options.Port, password: rand.Text(), log: log}

	var err error
	if s.credential, err = stepDown(); err != nil {
		return nil, err
	}
	if s.dir, err = makeDir(options.Dir, s.credential); err != nil {
		return nil, err
	}
	if s.supervisor, err = startSupervisor(s.dir); err != nil {
		os.RemoveAll(s.dir)
		return nil, err
	}
	if err := s.setUp(ctx, options); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Prepare makes a server as Start does, lets fill put into it what each copy shall have, and shuts it down: a template for
// others. The caller stops it, too.
func Prepare(ctx context.Context, options Options, fill func(*Server) error) (*Server, error) {
	s, err := Start(ctx, options)
	if err != nil {
		return nil, err
	}
	err = fill(s)
	s.mu.Lock()
	err = errors.Join(err, s.endLocked(ctx, syscall.SIGINT))
	s.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// setUp makes the cluster and starts it for the first time.
func (s *Server) setUp(ctx context.Context, options Options) error {
	var err error
	switch {
	case options.primary != nil:
		err = s.becomeStandby(ctx, options.primary)
	case options.Template != nil:
		err = s.copyFrom(ctx, options.Template)
	default:
		err = s.initdb(ctx, options.InitArgs)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Between choosing a free port and listening on it someone else may take it: then another one.
	for range 5 {
		if options.Port == 0 {
			var err error
			if s.port, err = freePort(); err != nil {
				return err
			}
		}
		if err := s.writeSettings(options.Settings); err != nil {
			return err
		}
		err := s.startLocked(ctx)
		if !errors.Is(err, ErrPortTaken) || options.Port != 0 {
			return err
		}
	}
	return fmt.Errorf("start postgres: %w, five times in a row", ErrPortTaken)
}

func (s *Server) initdb(ctx context.Context, args []string) error {
	hash, err := verifier(s.password)
	if err != nil {
		return err
	}
	// The initdb of before 14 cuts a password off after 99 bytes.
	if said, err := s.command(ctx, "initdb", "--version").Output(); err == nil && version(string(said)) < 14 {
		hash = s.password
	}
	passwordFile := filepath.Join(s.dir, "password")
	if err := s.writeFile(passwordFile, hash); err != nil {
		return err
	}
	defer os.Remove(passwordFile)
	cmd := s.command(ctx, "initdb", append([]string{"--pgdata", s.data(), "--username=postgres", "--pwfile=" + passwordFile,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"}, args...)...)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) && s.credential != nil {
		return fmt.Errorf("initdb: %w: Postgres does not run as root, and uid %d must be able to enter %s and to run %s",
			err, s.credential.Uid, filepath.Dir(s.dir), s.bin)
	}
	if err != nil {
		return fmt.Errorf("initdb in %s: %w: %s", s.data(), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (s *Server) writeSettings(extra map[string]string) error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": "",
		"wal_level":               "logical",
	}
	if s.hasSocket() {
		settings["unix_socket_directories"] = s.dir
	}
	maps.Copy(settings, extra)
	if settings["ssl"] == "on" {
		if err := s.writeCertificate(); err != nil {
			return err
		}
	}
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		value := strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(settings[name])
		fmt.Fprintf(&conf, "%s = '%s'\n", name, value)
	}
	return s.writeFile(filepath.Join(s.data(), "postgresql.conf"), conf.String())
}

// startLocked runs the postmaster until it answers.
func (s *Server) startLocked(ctx context.Context) error {
	switch {
	case s.gone:
		return errors.New("start postgres: its folder is removed, it was stopped for good")
	case s.runningLocked():
		return errors.New("start postgres: it runs already")
	}
	if err := portFree(s.port); err != nil {
		return err
	}
	logFile, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer logFile.Close()
	logStart, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	cmd := s.command(context.WithoutCancel(ctx), "postgres", "-D", s.data())
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.process = &process{cmd, make(chan struct{})}
	go func(p *process) {
		p.cmd.Wait() // how it ended stands in its log
		close(p.exited)
		// A caller may drop the Server and go on using it by DSN. Without this the collector would close
		// the supervisor's pipe, and that is what stops the server.
		runtime.KeepAlive(s.supervisor)
	}(s.process)
	if err := s.supervisor.watch(cmd.Process.Pid); err != nil {
		return errors.Join(err, s.endLocked(ctx, syscall.SIGQUIT))
	}
	if err := s.untilReady(ctx); err != nil {
		_ = s.endLocked(context.WithoutCancel(ctx), syscall.SIGQUIT) // why it did not get ready matters more
		said, _ := io.ReadAll(io.NewSectionReader(logFile, logStart, 1<<20))
		if strings.Contains(string(said), "could not bind") {
			err = errors.Join(ErrPortTaken, err)
		}
		return fmt.Errorf("start postgres: %w: its log says:\n%s", err, tail(said, 4096))
	}
	s.log.Debug("postgres started", "pid", cmd.Process.Pid, "port", s.port, "dir", s.dir)
	return nil
}

// untilReady waits until the server takes connections.
func (s *Server) untilReady(ctx context.Context) error {
	for {
		conn, err := pgconn.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "28P01" { // it will not become right
			return err
		}
		select {
		case <-s.process.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// command prepares a program of the server: as the user it runs as, in a session of its own so that
// Ctrl-C reaches only us, and without the environment that could lead it to another server.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.credential}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "LC_") && !strings.HasPrefix(variable, "LANG") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C") // messages that start can read
	return cmd
}

// DSN returns the connection string of a database of the server, for the superuser over TCP.
func (s *Server) DSN(database string) string {
	return s.dsn(database, url.Values{"sslmode": {"disable"}}, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
}

// Port is the TCP port on 127.0.0.1. It stays the same over restarts.
func (s *Server) Port() int { return s.port }

// Dir is the folder of the server. The cluster is in its subfolder data.
func (s *Server) Dir() string { return s.dir }

// LogFile is where the server writes its log. It is removed with the server.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "postgres.log") }

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// portFree says in words what Postgres would say in the middle of its log.
func portFree(port int) error {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("start postgres: %w: another program listens on 127.0.0.1:%d: choose another port", ErrPortTaken, port)
	case err != nil:
		return fmt.Errorf("start postgres: %w", err)
	}
	return listener.Close()
}

// freePort returns a TCP port on which no one listens at the moment.
func freePort() (int, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// tail returns the end of text, at most n bytes.
func tail(text []byte, n int) string {
	return strings.TrimSpace(string(text[max(0, len(text)-n):]))
}
