// Release builds what a release of walpost consists of, in the folder dist:
//
//	walpost_<version>_<os>_<arch>.tar.gz        the program, its licence, and the licences of what is linked into it
//	walpost_<version>_<os>_<arch>.cdx.json      what is linked into it, as a bill of materials (CycloneDX)
//	SHA256SUMS                                  of all of them
//
// Everything is built twice: the second time from a copy of the files in another folder and with an empty build cache. A
// single byte that differs fails the release.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is the package of the binary, versionVariable what "walpost version" and walpost_build_info show.
const (
	program         = "./cmd/walpost"
	versionVariable = "github.com/backendstart/walpost/internal/app.version"
)

// bomTool makes the bill of materials out of the binary.
const bomTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// A target is a system that is built for.
type target struct{ os, arch string }

var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

func (t target) String() string { return t.os + "/" + t.arch }

// versions is how a version may look: it becomes a part of names of files and an argument of the linker.
var versions = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+~-]{0,63}$`)

func main() {
	version := flag.String("version", "", "version of the release, without which git is asked")
	out := flag.String("out", "dist", "folder of the results; what is in it goes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := release(ctx, *version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func release(ctx context.Context, version, out string) error {
	if version == "" {
		text, err := output(ctx, ".", nil, "git", "describe", "--tags", "--always", "--dirty")
		if err != nil {
			return err
		}
		version = strings.TrimPrefix(strings.TrimSpace(text), "v")
	}
	if !versions.MatchString(version) {
		return fmt.Errorf("version %q: only letters, digits, dots, plus, tilde and minus, at most 64", version)
	}
	work, err := os.MkdirTemp("", "walpost-release-")
	if err != nil {
		return err
	}
	defer removeReadOnly(work)

	first := filepath.Join(work, "first")
	if err := build(ctx, ".", first, version, nil); err != nil {
		return err
	}
	fmt.Println("once more, from a copy of the files and with an empty build cache")
	tree, second := filepath.Join(work, "tree"), filepath.Join(work, "second")
	if err := copyTree(ctx, tree); err != nil {
		return err
	}
	if err := build(ctx, tree, second, version, []string{"GOCACHE=" + filepath.Join(work, "cache")}); err != nil {
		return err
	}
	sums, err := compare(first, second)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(first, "SHA256SUMS"), sums, 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.CopyFS(out, os.DirFS(first)); err != nil {
		return err
	}
	fmt.Printf("%s: built twice, byte for byte the same\n%s", version, sums)
	return nil
}

// build makes the files of all targets in the folder out, from the sources in the folder tree.
func build(ctx context.Context, tree, out, version string, env []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, t := range targets {
		fmt.Println("build", t)
		env := append([]string{
			"CGO_ENABLED=0", "GOOS=" + t.os, "GOARCH=" + t.arch,
			// Nothing of the machine decides what comes out.
			"GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off",
		}, env...)
		name := fmt.Sprintf("walpost_%s_%s_%s", version, t.os, t.arch)
		binary := filepath.Join(out, name, "walpost")
		if _, err := output(ctx, tree, env, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
			"-ldflags", "-s -w -buildid= -X "+versionVariable+"="+version, "-o", binary, program); err != nil {
			return err
		}
		notices, err := noticesOf(ctx, tree, env, binary)
		if err != nil {
			return err
		}
		if err := pack(filepath.Join(out, name+".tar.gz"), name, []entry{
			{name: "walpost", from: binary, mode: 0o755},
			{name: "LICENSE", from: filepath.Join(tree, "LICENSE"), mode: 0o644},
			{name: "LICENSES-OF-PARTS", text: notices, mode: 0o644},
		}); err != nil {
			return err
		}
		// The tool runs on this machine, whatever the binary is for.
		if _, err := output(ctx, tree, nil, "go", "run", bomTool, "bin", "-json", "-noserial", "-licenses", "-version", version,
			"-output", filepath.Join(out, name+".cdx.json"), binary); err != nil {
			return err
		}
		if err := withoutTime(filepath.Join(out, name+".cdx.json")); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Dir(binary)); err != nil {
			return err
		}
	}
	return nil
}

// bomTime is the moment at which a bill of materials was made: the one thing in it that differs between two builds.
var bomTime = regexp.MustCompile(`(?m)^\s*"timestamp": "[^"]*",?\n`)

func withoutTime(bom string) error {
	text, err := os.ReadFile(bom)
	if err != nil {
		return err
	}
	return os.WriteFile(bom, bomTime.ReplaceAll(text, nil), 0o644)
}

// compare returns the sums of the files of one folder, if the other one has the same files.
func compare(first, second string) ([]byte, error) {
	a, err := sumsOf(first)
	if err != nil {
		return nil, err
	}
	b, err := sumsOf(second)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			errs = append(errs, fmt.Errorf("two builds differ: %s, and %s", at(a, i), at(b, i)))
		}
	}
	return []byte(strings.Join(a, "\n") + "\n"), errors.Join(errs...)
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "nothing"
}

// sumsOf are the lines of SHA256SUMS for a folder's files, in the order of their names.
func sumsOf(folder string) ([]string, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%x  %s", sha256.Sum256(content), f.Name()))
	}
	return lines, nil
}

// copyTree copies the files that git knows, and those that it would, as they are now.
func copyTree(ctx context.Context, to string) error {
	list, err := output(ctx, ".", nil, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		content, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not yet committed
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// output runs a command and returns what it prints; an error has what it says.
func output(ctx context.Context, folder string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(slices.Concat(env, []string{name}, args), " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// removeReadOnly removes a folder that may hold read-only folders.
func removeReadOnly(folder string) {
	_ = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	os.RemoveAll(folder)
}
