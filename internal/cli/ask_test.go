package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// listening is a server that writes down which tokens it was sent, and lets no one in.
type listening struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // guarded by mu
}

func newListening(t *testing.T) *listening {
	t.Helper()
	l := new(listening)
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.seen = append(l.seen, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listening) heard() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := strings.Join(l.seen, "|")
	l.seen = nil
	return heard
}

// S-05: the ops token of the environment never goes to an address from a file, and the command says why.
func TestAsk_sendsTheTokenOfTheEnvironmentToNoAddressOfAFile(t *testing.T) {
	l := newListening(t)
	address := strings.TrimPrefix(l.URL, "http://")
	t.Chdir(t.TempDir())
	token := map[string]string{"WALPOST_OPS_TOKEN": "sesame"}
	for _, test := range []struct {
		name, file string
		env        map[string]string
		args, want string
		withheld   bool
	}{
		{"both from the environment", "slot: walpost\n", map[string]string{"WALPOST_OPS_TOKEN": "sesame", "WALPOST_OPS_URL": l.URL}, "", "Bearer sesame", false},
		{"the address of a flag", "ops_url: http://127.0.0.1:1\n", token, "--ops-url=" + l.URL, "Bearer sesame", false},
		{"the address of the file", "ops_url: " + l.URL + "\n", token, "", "", true},
		{"the listener of the file", "ops_listen: " + address + "\n", token, "", "", true},
		{"the token of a flag", "ops_url: " + l.URL + "\n", nil, "--ops-token=sesame", "", true},
		{"both of the file", "ops_url: " + l.URL + "\nops_token: sesame\n", nil, "", "Bearer sesame", false},
		{"the token of both", "ops_url: " + l.URL + "\nops_token: other\n", token, "", "", true},
	} {
		if err := os.WriteFile("walpost.yaml", []byte(test.file), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := execute(t, test.env, append([]string{"tail"}, strings.Fields(test.args)...)...)
		if heard := l.heard(); code != exitFailed || heard != test.want {
			t.Errorf("%s: exit code %d, the server was sent %q, want %q: %s", test.name, code, heard, test.want, stderr)
		}
		if got := strings.Contains(stderr, "token was not sent"); got != test.withheld {
			t.Errorf("%s: says %s", test.name, stderr)
		}
		if !strings.Contains(stderr, "options come from walpost.yaml of this directory") {
			t.Errorf("%s: does not say which file it uses: %s", test.name, stderr)
		}
	}
}

// S-05
func TestMain_usesNoFileThatOthersCouldHaveLeft(t *testing.T) {
	l := newListening(t)
	folder := t.TempDir()
	t.Chdir(folder)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("walpost.yaml", fmt.Appendf(nil, "ops_url: %s\nops_token: {file: %s}\n", l.URL, secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o777|os.ModeSticky); err != nil { // as /tmp is
		t.Fatal(err)
	}
	code, _, stderr := execute(t, nil, "tail")
	if heard := l.heard(); code != exitUsage || heard != "" || !strings.Contains(stderr, "is not used") {
		t.Errorf("exit code %d, the server was sent %q: %s", code, heard, stderr)
	}
}
