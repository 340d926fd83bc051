// Package natstest starts a real NATS server with JetStream for tests and examples, in a process of its own, so that it can
// be killed and frozen: the process that asks for it, once more. It is for tests only; the program has no part of it.
package natstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// variable names the configuration of the server that a process is to be.
const variable = "WALPOST_TEST_NATS_SERVER"

// T is what a test has, or a program in its place.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	TempDir() string
	Cleanup(run func())
	Context() context.Context
}

// patience is how long a server may take to start.
const patience = 2 * time.Minute

// Main makes a server of this process where Start has begun it, and does not return then. It is the first line of TestMain,
// or of main.
func Main() {
	file := os.Getenv(variable)
	if file == "" {
		return
	}
	if err := serve(file); err != nil {
		fmt.Fprintln(os.Stderr, "nats server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs until standard input ends, as it does when the process that began this one has ended.
func serve(file string) error {
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		return err
	}
	options.NoSigs = true
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// Server is one server. It survives Down and Up with its data.
type Server struct {
	folder string
	name   string
	port   int
	extra  []string
	login  []nats.Option
	cmd    *exec.Cmd // nil while it is down
	stdin  io.Closer
	said   *bytes.Buffer
	ended  chan struct{} // closed when the process has ended
	admin  *nats.Conn
	js     jetstream.JetStream
}

// Start starts a server, which ends with the test. extra are further lines of its configuration.
func Start(t T, extra ...string) *Server {
	t.Helper()
	return StartWithLogin(t, nil, extra...)
}

// StartWithLogin is Start for a server that asks for a login: the options are those of the connection that may everything.
func StartWithLogin(t T, login []nats.Option, extra ...string) *Server {
	t.Helper()
	s := &Server{folder: t.TempDir(), port: freePorts(t, 1)[0], extra: extra, login: login}
	t.Cleanup(func() { s.end(t) })
	s.Up(t)
	return s
}

// StartCluster starts so many servers that form a cluster. Replicas of a stream are on different ones.
func StartCluster(t T, size int) []*Server {
	t.Helper()
	ports := freePorts(t, 2*size)
	var routes []string
	for _, port := range ports[size:] {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	servers := make([]*Server, size)
	for i := range servers {
		s := &Server{folder: t.TempDir(), port: ports[i], name: fmt.Sprintf("node-%d", i+1)}
		s.extra = []string{
			"server_name: " + s.name,
			fmt.Sprintf("cluster { name: walpost, listen: 127.0.0.1:%d, routes: [%s] }", ports[size+i], strings.Join(routes, ", ")),
		}
		servers[i] = s
		t.Cleanup(func() { s.end(t) })
		s.begin(t)
	}
	for _, s := range servers {
		s.await(t)
	}
	return servers
}

// freePorts are ports that no one listens on at this moment.
func freePorts(t T, n int) (ports []int) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (s *Server) end(t T) {
	if s.admin != nil {
		s.admin.Close()
	}
	s.Down(t)
}

// Name is that of a server of a cluster.
func (s *Server) Name() string { return s.name }

// Configure changes the further lines of the configuration. They count from the next Up on.
func (s *Server) Configure(extra ...string) { s.extra = extra }

// Address is host:port.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *Server) path(name string) string { return filepath.Join(s.folder, name) }

// Up starts the server again, with what it had, and waits until it answers.
func (s *Server) Up(t T) {
	t.Helper()
	s.begin(t)
	s.await(t)
}

// begin starts the process.
func (s *Server) begin(t T) {
	t.Helper()
	lines := append([]string{
		"listen: " + s.Address(), fmt.Sprintf("log_file: %q", s.path("server.log")),
		fmt.Sprintf("jetstream { store_dir: %q, max_file_store: 8GB, max_memory_store: 256MB }", s.folder),
	}, s.extra...)
	if err := os.WriteFile(s.path("server.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program) //nolint:gosec // it is this program
	cmd.Env = append(os.Environ(), variable+"="+s.path("server.conf"))
	s.said = new(bytes.Buffer)
	cmd.Stderr, cmd.Dir = s.said, s.folder
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	s.cmd, s.stdin, s.ended = cmd, stdin, ended
}

// await waits until the server answers.
func (s *Server) await(t T) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-s.ended:
			s.cmd = nil
			t.Fatalf("the server ended: %s\n%s", s.said, s.log())
		default:
		}
		err := s.answers(t)
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			t.Fatalf("the server does not answer: %v\n%s", err, s.log())
		}
	}
}

func (s *Server) log() string {
	text, _ := os.ReadFile(s.path("server.log"))
	return string(text[max(0, len(text)-4000):])
}

// answers asks for the account, on the connection that may everything.
func (s *Server) answers(t T) error {
	if s.admin == nil {
		conn, err := nats.Connect("nats://"+s.Address(), append([]nats.Option{
			nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.IgnoreAuthErrorAbort(),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		}, s.login...)...)
		if err != nil {
			return err
		}
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		s.admin, s.js = conn, js
	}
	if !s.admin.IsConnected() {
		return errors.New("not connected")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.js.AccountInfo(ctx)
	return err
}

// Down kills the server.
func (s *Server) Down(t T) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-s.ended
	_ = s.stdin.Close()
	s.cmd = nil
}

// Freeze stops the process, which keeps its connections; thaw lets it go on.
func (s *Server) Freeze(t T) (thaw func()) {
	t.Helper()
	process := s.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); !s.stopped(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatal("the server does not stop")
		}
	}
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

// stopped tells whether the kernel has stopped the process: the signal alone says that it will. (proc(5), /proc/pid/stat)
func (s *Server) stopped() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	_, after, found := strings.Cut(string(text), ") ")
	return err == nil && found && strings.HasPrefix(after, "T")
}

// JetStream is that of the connection that may everything.
func (s *Server) JetStream() jetstream.JetStream { return s.js }

// Conn is the connection that may everything.
func (s *Server) Conn() *nats.Conn { return s.admin }

// Stream makes a stream, or changes the one of that name.
func (s *Server) Stream(t T, config jetstream.StreamConfig) {
	t.Helper()
	if _, err := s.js.CreateOrUpdateStream(t.Context(), config); err != nil {
		t.Fatalf("stream %s: %v", config.Name, err)
	}
}

// Messages are those of a stream, in order.
func (s *Server) Messages(t T, name string) []*jetstream.RawStreamMsg {
	t.Helper()
	stream, err := s.js.Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	last := stream.CachedInfo().State.LastSeq
	if stream.CachedInfo().State.Msgs == 0 {
		return nil
	}
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	reading, err := consumer.Messages()
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	defer reading.Stop()
	var all []*jetstream.RawStreamMsg
	for {
		m, err := reading.Next(jetstream.NextMaxWait(patience))
		if err != nil {
			t.Fatalf("read stream %s: %v", name, err)
		}
		about, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &jetstream.RawStreamMsg{Subject: m.Subject(), Sequence: about.Sequence.Stream, Header: m.Headers(), Data: m.Data(), Time: about.Timestamp})
		if about.Sequence.Stream >= last {
			return all
		}
	}
}
