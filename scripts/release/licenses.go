package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// accepted are the licences under which parts may be linked into a program that is given away under Apache-2.0. Another
// one wants a person who reads it.
var accepted = map[string]bool{
	"0BSD": true, "Apache-2.0": true, "BSD-2-Clause": true, "BSD-3-Clause": true, "CC0-1.0": true, "ISC": true, "MIT": true,
	"MPL-2.0": true, "Unlicense": true, "Zlib": true,
}

// licenseFile is how files with licences and notices are called.
var licenseFile = regexp.MustCompile(`(?i)^(li[cs]en[cs]e|copying|unlicense|notice)([.-].*)?$`)

// linked is a package of the program, as go list tells it.
type linked struct {
	ImportPath string
	Dir        string
	Standard   bool
	Module     *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version, Dir string }
	}
}

// part is a module of which something is linked, or the standard library.
type part struct {
	name  string
	files map[string]bool // with licences
}

// noticesOf returns the licences of everything that is linked into a binary, as one text. What has none, or one that is not
// accepted, is an error.
func noticesOf(ctx context.Context, tree string, env []string, binary string) ([]byte, error) {
	text, err := output(ctx, tree, env, "go", "list", "-mod=readonly", "-deps", "-json=ImportPath,Dir,Standard,Module", program)
	if err != nil {
		return nil, err
	}
	root, err := output(ctx, tree, env, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	parts, err := partsOf(text, strings.TrimSpace(root))
	if err != nil {
		return nil, err
	}
	if err := compareWithBinary(parts, binary); err != nil {
		return nil, err
	}
	return notices(parts)
}

// partsOf gathers the licence files in the folders of linked packages and above them, up to the root of their module.
func partsOf(packages, goroot string) (map[string]*part, error) {
	parts := make(map[string]*part)
	decoder := json.NewDecoder(strings.NewReader(packages))
	for {
		var p linked
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return parts, nil
		} else if err != nil {
			return nil, err
		}
		name, top := "the Go standard library", goroot
		switch {
		case p.Module != nil && p.Module.Main:
			continue
		case p.Module != nil && p.Module.Replace != nil:
			name, top = p.Module.Path+" "+p.Module.Version, p.Module.Replace.Dir
		case p.Module != nil:
			name, top = p.Module.Path+" "+p.Module.Version, p.Module.Dir
		case !p.Standard:
			return nil, fmt.Errorf("package %s has no module", p.ImportPath)
		default:
			// Below are licences of what a release is not built with, such as BoringSSL.
			p.Dir = goroot
		}
		if parts[name] == nil {
			parts[name] = &part{name: name, files: make(map[string]bool)}
		}
		for folder := p.Dir; ; folder = filepath.Dir(folder) {
			files, err := os.ReadDir(folder)
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				if !f.IsDir() && licenseFile.MatchString(f.Name()) && filepath.Ext(f.Name()) != ".go" {
					parts[name].files[filepath.Join(folder, f.Name())] = true
				}
			}
			if folder == top || len(folder) < len(top) {
				break
			}
		}
	}
}

// compareWithBinary makes sure that the parts are those of which the binary itself says that it has them.
func compareWithBinary(parts map[string]*part, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	for _, m := range info.Deps {
		if name := m.Path + " " + m.Version; parts[name] == nil {
			return fmt.Errorf("%s is linked, and its licence was not looked for", name)
		}
	}
	if got, want := len(parts), len(info.Deps)+1; got != want {
		return fmt.Errorf("licences of %d parts, and the binary has %d", got, want)
	}
	return nil
}

// notices writes the licences one behind the other, in the order of the parts' names.
func notices(parts map[string]*part) ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		names, texts, err := readLicenses(parts[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(&out, "%s\n%s\nLicence: %s\n\n", strings.Repeat("=", 80), name, strings.Join(names, ", "))
		for _, text := range texts {
			fmt.Fprintf(&out, "%s\n\n", strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n")))
		}
	}
	return out.Bytes(), errors.Join(errs...)
}

// readLicenses returns the SPDX names of a part's licences, and the texts, each text once.
func readLicenses(p *part) (names, texts []string, err error) {
	for _, file := range slices.Sorted(maps.Keys(p.files)) {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		if slices.Contains(texts, string(content)) {
			continue
		}
		texts = append(texts, string(content))
		for _, match := range licensecheck.Scan(content).Match {
			if match.IsURL || slices.Contains(names, match.ID) {
				continue // a notice that names where a licence stands is none
			}
			if !accepted[match.ID] {
				return nil, nil, fmt.Errorf("%s: %s has the licence %s, which is not among those that are accepted", p.name, file, match.ID)
			}
			names = append(names, match.ID)
		}
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("%s: no licence is found in %d files", p.name, len(p.files))
	}
	return names, texts, nil
}
