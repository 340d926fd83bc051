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
