package safefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckOwner returns an error if another user than this process's and root could have written the file, or put it where
// it is: one that anyone can leave in a folder like /tmp must not decide where a command sends a password. It looks at
// the file, the folder it is in, and the same of where a symbolic link leads.
func CheckOwner(path string) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(absolute)
	if err != nil {
		return err
	}
	for _, place := range []string{absolute, filepath.Dir(absolute), target, filepath.Dir(target)} {
		if err := checkPlace(place); err != nil {
			return err
		}
	}
	return nil
}

func checkPlace(place string) error {
	info, err := os.Lstat(place)
	if err != nil {
		return err
	}
	owner, known := ownerOf(info)
	switch {
	case !known:
		return fmt.Errorf("who owns %s is unknown here", place)
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, and this process runs as uid %d", place, owner, os.Geteuid())
	case info.Mode().Type() != fs.ModeSymlink && info.Mode().Perm()&0o022 != 0: // a link has no mode of its own
		return fmt.Errorf("%s can be written by others (mode %s)", place, info.Mode().Perm())
	}
	return nil
}
