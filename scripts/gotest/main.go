// Gotest runs "go test -json" with the arguments it is given, prints what a person wants to read (a line
// per package, the output of what failed) and closes with the counts alone on a line:
//
//	412 passed, 0 failed, 0 skipped
//
// With CI=true a skipped test fails the run: a test that is skipped there proves nothing and no one sees
// it. A run in which no test ran fails everywhere. Without a C compiler, which the race detector needs,
// -race is left out and that is said; with CI=true it is an error.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("CI") == "true", os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(args []string, ci bool, stdout, stderr io.Writer) error {
	var hint string
	if slices.Contains(args, "-race") && !hasCompiler() {
		hint = "the race detector needs cgo and a C compiler, and there is none; get one with apt-get install gcc libc6-dev, " +
			"dnf install gcc glibc-devel, apk add build-base or xcode-select --install"
		if ci {
			return errors.New(hint)
		}
		args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "-race" })
		fmt.Fprintln(stderr, "gotest: testing without -race:", hint)
	}

	command := []string{"test"}
	if len(args) > 1 && args[0] == "-C" { // go wants it first
		command, args = append(command, args[:2]...), args[2:]
	}
	cmd := exec.Command("go", append(append(command, "-json"), args...)...)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	result, readErr := report(pipe, stdout)
	waitErr := cmd.Wait()

	if hint != "" {
		fmt.Fprintln(stderr, "gotest: this was without -race:", hint)
	}
	fmt.Fprintln(stdout, result)
	switch {
	case readErr != nil:
		return readErr
	case waitErr != nil:
		return fmt.Errorf("go test %s: %w", strings.Join(args, " "), waitErr)
	}
	return result.verdict(ci)
}

// hasCompiler reports whether go would build with cgo, which it turns off by itself when it finds no
// compiler, unless someone set CGO_ENABLED=1.
func hasCompiler() bool {
	out, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		return false
	}
	enabled, cc, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	name, _, _ := strings.Cut(cc, " ")
	_, err = exec.LookPath(name)
	return enabled == "1" && err == nil
}
