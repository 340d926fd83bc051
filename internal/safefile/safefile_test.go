package safefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// S-07
func TestRead_endsWhateverThePathLeadsTo(t *testing.T) {
	folder := t.TempDir()
	small, large, pipe := filepath.Join(folder, "small"), filepath.Join(folder, "large"), filepath.Join(folder, "pipe")
	for path, size := range map[string]int{small: 100, large: 101} {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		small: "", large: "too large", pipe: "no regular file", folder: "no regular file", "/dev/zero": "no regular file",
		filepath.Join(folder, "none"): "no such file",
	} {
		answered := make(chan error, 1)
		go func() {
			_, err := Read(path, 100)
			answered <- err
		}()
		select {
		case err := <-answered:
			if got := errorText(err); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("%s: %v, want %q", path, err, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s is read without end", path)
		}
	}
	if _, err := Read(large, 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// S-58
func TestLatest_readsAgainAndKeepsWhatAFileThatIsGoneHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	live := Live(path, "first")
	for _, test := range []struct{ held, want string }{{"first\n", "first"}, {"second\r\n", "second"}, {"third\n\n", "third\n"}, {"", ""}} {
		if err := os.WriteFile(path, []byte(test.held), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Latest(live); got != test.want {
			t.Errorf("the file holds %q: got %q, want %q", test.held, got, test.want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := Latest(live); got != "first" || AtStart(live) != "first" || !IsLive(live) {
		t.Errorf("without the file: got %q, at the start %q, want first", got, AtStart(live))
	}
	if plain := "file:" + path; Latest(plain) != plain || AtStart(plain) != plain || IsLive(plain) {
		t.Errorf("a plain text is read as %q", Latest(plain))
	}
}
