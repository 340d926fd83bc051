package file_test

import (
	"os/signal"
	"syscall"
	"testing"
)

// limitFileSize runs fn while no file of this process may grow beyond size: a write then ends in its middle, as on a full
// disk. (setrlimit(2), RLIMIT_FSIZE; its signal would end the process)
func limitFileSize(t *testing.T, size uint64, fn func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limited := before
	limited.Cur = size
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
}
