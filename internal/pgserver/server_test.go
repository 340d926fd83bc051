package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"time"

	"github.com/backendstart/walpost/internal/testwait"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestMain lets the test binary be the program that is killed while its server runs.
func TestMain(m *testing.M) {
	if mode := os.Getenv("PGSERVER_TEST_VICTIM"); mode != "" {
		victim(mode)
	}
	os.Exit(m.Run())
}

// victim starts a server, says where, and waits to be killed.
func victim(mode string) {
	server, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if mode == "frozen" {
		if err := server.Freeze(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Println(server.PID(), server.Dir())
	select {}
}

func TestServer_leavesNothingBehindWhenItsProcessIsKilled(t *testing.T) {
	for _, mode := range []string{"running", "frozen"} {
		t.Run(mode, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "PGSERVER_TEST_VICTIM="+mode)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			var dir string
			if _, err := fmt.Sscan(line, &pid, &dir); err != nil {
				t.Fatal(err)
			}
			family, err := children(pid)
			if err != nil || len(family) == 0 {
				t.Fatalf("children of the postmaster: %v, %v", family, err)
			}

			cmd.Process.Kill()
			cmd.Wait()

			eventually(t, "the folder is removed", func() bool { return !exists(dir) })
			for _, p := range append(family, pid) {
				eventually(t, fmt.Sprintf("process %d of the server ends", p), func() bool { return !alive(p) })
			}
		})
	}
}

func TestServer_isGoneAfterStop(t *testing.T) {
	server := start(t, Options{})
	pid := server.PID()
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Errorf("postmaster %d still runs", pid)
	}
	if exists(server.Dir()) {
		t.Errorf("%s is still there", server.Dir())
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if err := server.StartAgain(t.Context()); err == nil {
		t.Error("a server without a folder starts again")
	}
}

func TestServer_keepsPortAndDataOverRestartAndCrash(t *testing.T) {
	server := start(t, Options{Settings: map[string]string{"application_name": `it's a \ name`}})
	exec1(t, server, "CREATE TABLE t AS SELECT 1 AS n")
	port := server.Port()

	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := exec1(t, server, "SELECT n FROM t"); got != "1" {
		t.Errorf("after a restart n is %q, want 1", got)
	}
	exec1(t, server, "INSERT INTO t VALUES (2)")
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := server.PID(); got != 0 {
		t.Errorf("killed, and the pid is %d", got)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := exec1(t, server, "SELECT sum(n) FROM t"); got != "3" {
		t.Errorf("after a crash the sum is %q, want 3", got)
	}
	if server.Port() != port {
		t.Errorf("port %d became %d", port, server.Port())
	}
	if got, want := exec1(t, server, "SHOW application_name"), `it's a \ name`; got != want {
		t.Errorf("setting is %q, want %q", got, want)
	}
	if got := exec1(t, server, "SHOW wal_level"); got != "logical" {
		t.Errorf("wal_level is %q, want logical", got)
	}
}

func TestPrepare_makesATemplateThatServersAreCopiedFrom(t *testing.T) {
	template, err := Prepare(t.Context(), Options{}, func(s *Server) error {
		exec1(t, s, "CREATE TABLE filled AS SELECT 7 AS n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if template.PID() != 0 {
		t.Error("the template runs")
	}
	a, b := start(t, Options{Template: template}), start(t, Options{Template: template})
	exec1(t, a, "CREATE TABLE t AS SELECT n - 6 AS n FROM filled")
	if got := exec1(t, b, "SELECT to_regclass('t') IS NULL"); got != "t" {
		t.Error("what is made on one copy is on the other")
	}
	if err := template.Stop(t.Context()); err != nil || exists(template.Dir()) {
		t.Errorf("stop of the template: %v, its folder is there: %v", err, exists(template.Dir()))
	}
	if got := exec1(t, a, "SELECT n FROM t"); got != "1" {
		t.Errorf("without the template n is %q, want 1", got)
	}
}

func TestStandby_followsItsPrimaryAndTakesOverNoSlot(t *testing.T) {
	primary := start(t, Options{})
	exec1(t, primary, "CREATE TABLE t AS SELECT 1 AS n")
	exec1(t, primary, "SELECT pg_create_physical_replication_slot('standby')")
	standby, err := primary.Standby(t.Context(), Options{Settings: map[string]string{"primary_slot_name": "standby"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	exec1(t, primary, "INSERT INTO t VALUES (2)")
	eventually(t, "the row is on the standby", func() bool { return exec1(t, standby, "SELECT sum(n) FROM t") == "3" })
	for server, want := range map[*Server]string{primary: "false, 1", standby: "true, 0"} {
		if got := exec1(t, server, "SELECT pg_is_in_recovery() || ', ' || count(*) FROM pg_replication_slots"); got != want {
			t.Errorf("in recovery, and number of slots: %q, want %q", got, want)
		}
	}
	exec1(t, standby, "SELECT pg_promote()")
	if got := exec1(t, standby, "INSERT INTO t VALUES (3) RETURNING n"); got != "3" {
		t.Errorf("after the promotion an insert gives %q, want 3", got)
	}
}

func TestServer_answersNoOneWhileFrozen(t *testing.T) {
	server := start(t, Options{})
	conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- conn.Exec(context.Background(), "SELECT 1").Close() }()
	select {
	case err := <-answer:
		t.Errorf("a frozen server answers: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answer:
		if err != nil {
			t.Errorf("after the thaw: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("no answer after the thaw")
	}
}

func TestServer_stopsFrozen(t *testing.T) {
	server := start(t, Options{})
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStart_namesATakenPort(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	dir := folder(t)
	_, err = Start(t.Context(), Options{Port: port, Dir: dir})
	if !errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("got %v, want ErrPortTaken with port %d", err, port)
	}
	if exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

func TestStart_makesTheServerInTheFolderGiven(t *testing.T) {
	dir := folder(t)
	server := start(t, Options{Dir: dir})
	if got := exec1(t, server, "SHOW data_directory"); got != filepath.Join(dir, "data") {
		t.Errorf("the data is in %s, want it in %s", got, dir)
	}
}

func TestStart_makesTheServerBelowTheFolderOfTheVariable(t *testing.T) {
	parent := filepath.Dir(folder(t))
	t.Setenv("WALPOST_TEST_PG_DIR", parent)
	if server := start(t, Options{}); filepath.Dir(server.Dir()) != parent {
		t.Errorf("the server is in %s, want it below %s", server.Dir(), parent)
	}
}

func TestStart_quotesTheServersLogWhenASettingIsWrong(t *testing.T) {
	_, err := Start(t.Context(), Options{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v, want the server's own words about no_such_setting", err)
	}
}

func TestStart_removesEverythingWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := folder(t)
	if _, err := Start(ctx, Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

func TestStart_refusesAFolderThatExists(t *testing.T) {
	dir := t.TempDir()
	if _, err := Start(t.Context(), Options{Dir: dir}); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v, want os.ErrExist", err)
	}
	if !exists(dir) {
		t.Error("someone else's folder is removed")
	}
}

func TestStart_asksForAPassword(t *testing.T) {
	server := start(t, Options{})
	for _, host := range []string{"127.0.0.1", server.Dir()} {
		dsn := fmt.Sprintf("host=%s port=%d user=postgres password=wrong dbname=postgres sslmode=disable", host, server.Port())
		_, err := pgconn.Connect(t.Context(), dsn)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "28P01" {
			t.Errorf("by %s: %v, want a refused password", host, err)
		}
	}
}

// A hash of few iterations is what keeps thousands of connections of tests cheap.
func TestStart_storesTheHashOfItsPasswordAsItIs(t *testing.T) {
	server := start(t, Options{})
	if got, want := exec1(t, server, "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'"), "SCRAM-SHA-256$1:"; !strings.HasPrefix(got, want) {
		t.Errorf("the stored password is %q, want one that begins with %q", got, want)
	}
}

func TestFind_looksOnlyWhereTheVariableSays(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("WALPOST_TEST_PG_BIN", empty)
	if bin, err := Find(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), empty) {
		t.Errorf("got %q, %v, want ErrNotFound with the folder", bin, err)
	}
}

func TestFind_followsALinkInThePath(t *testing.T) {
	real, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	links := t.TempDir()
	if err := os.Symlink(filepath.Join(real, "initdb"), filepath.Join(links, "initdb")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", links)
	if got, err := Find(); err != nil || got != real {
		t.Errorf("got %q, %v, want %q", got, err, real)
	}
}

func TestFind_ordersByVersionAsANumber(t *testing.T) {
	if !(version("/usr/lib/postgresql/17/bin") > version("/usr/lib/postgresql/9.6/bin")) {
		t.Error("9.6 is newer than 17")
	}
}

func start(t *testing.T, options Options) *Server {
	t.Helper()
	server, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return server
}

// folder returns a path that does not exist yet, below one that the server's user can reach (it cannot
// reach t.TempDir when we are root).
func folder(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "pg")
}

// exec1 runs one statement and returns the first value it gives, "" if it gives none.
func exec1(t *testing.T, server *Server, sql string) string {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	results, err := conn.Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if len(results[0].Rows) == 0 {
		return ""
	}
	return string(results[0].Rows[0][0])
}

// eventually waits for what no channel tells.
var eventually = testwait.Eventually

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// alive reports whether pid is a process that is more than a zombie waiting for its parent.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}
