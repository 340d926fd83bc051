// Package safefile reads files that a configuration names. A name can lead to a device or a pipe that never ends, and
// a file in the working directory can belong to someone else: both are refused in words. It writes nothing.
package safefile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Read returns a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK the open itself would wait for the other end of a pipe.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Size() > limit:
		return nil, tooLarge(path, limit)
	}
	// What the size says of a file that grows, or of one in /proc, does not count.
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(content)) > limit:
		return nil, tooLarge(path, limit)
	}
	return content, nil
}

func tooLarge(path string, limit int64) error {
	return fmt.Errorf("%s: %w, it may have %d bytes", path, ErrTooLarge, limit)
}

// ErrTooLarge is the error of a file that is not read because of its size.
var ErrTooLarge = errors.New("the file is too large")
