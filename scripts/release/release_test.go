package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Files are made at other times, in other folders and with other modes, and the archive is the same.
func TestPack_writesTheSameBytesWheneverItRuns(t *testing.T) {
	var archives [][]byte
	for _, mode := range []os.FileMode{0o600, 0o755} {
		folder := t.TempDir()
		program := filepath.Join(folder, "program")
		if err := os.WriteFile(program, []byte("code"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(program, time.Time{}, time.Unix(int64(mode)*1e6, 0)); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(folder, "a.tar.gz")
		if err := pack(archive, "walpost_1", []entry{{name: "walpost", from: program, mode: 0o755}, {name: "LICENSE", text: []byte("free"), mode: 0o644}}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}
	zipped, err := gzip.NewReader(bytes.NewReader(archives[0]))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for files := tar.NewReader(zipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, header.FileInfo().Mode().String()+" "+header.Name)
	}
	if got, want := strings.Join(got, ", "), "-rwxr-xr-x walpost_1/walpost, -rw-r--r-- walpost_1/LICENSE"; got != want {
		t.Errorf("the archive has %s, want %s", got, want)
	}
}

func TestCompare_namesWhatDiffers(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write := func(folder, name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(first, "a", "same")
	write(second, "a", "same")
	sums, err := compare(first, second)
	if err != nil || string(sums) != "0967115f2813a3541eaef77de9d9d5773f1c0c04314b0bbfe4ff3b3b1c55b5d5  a\n" {
		t.Errorf("the sums of equal folders are %q, %v", sums, err)
	}
	write(first, "b", "one")
	write(second, "b", "two")
	write(second, "c", "more")
	_, err = compare(first, second)
	if err == nil || strings.Count(err.Error(), "differ") != 2 || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("folders that differ in two files: %v", err)
	}
}

// A part whose licence no one has read must not slip into a release.
func TestNotices_refuseWhatHasNoLicenceOrAnotherOne(t *testing.T) {
	file := func(text string) map[string]bool {
		name := filepath.Join(t.TempDir(), "LICENSE")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return map[string]bool{name: true}
	}
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	mit := "MIT License\n\nCopyright (c) 2020 A\n\nPermission is hereby granted, free of charge, to any person obtaining a copy of this software and " +
		"associated documentation files (the \"Software\"), to deal in the Software without restriction, including without limitation the rights " +
		"to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the " +
		"Software is furnished to do so, subject to the following conditions:\n\nThe above copyright notice and this permission notice shall be " +
		"included in all copies or substantial portions of the Software.\n\nTHE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS " +
		"OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO " +
		"EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT " +
		"OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.\n"
	text, err := notices(map[string]*part{
		"b 1": {name: "b 1", files: file(mit)},
		"a 1": {name: "a 1", files: file(string(apache))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := strings.Index(string(text), "a 1\nLicence: Apache-2.0"), strings.Index(string(text), "b 1\nLicence: MIT"); a < 0 || b < a {
		t.Errorf("the notices are not in the order of the names, or name other licences:\n%.300s", text)
	}
	_, err = notices(map[string]*part{
		"none 1":  {name: "none 1", files: map[string]bool{}},
		"other 1": {name: "other 1", files: file("All rights reserved. Ask us before you use this.")},
		"gnu 1":   {name: "gnu 1", files: file("This program is free software: you can redistribute it and/or modify it under the terms of the GNU Affero General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.")},
	})
	if err == nil {
		t.Fatal("parts without an accepted licence pass")
	}
	for _, name := range []string{"none 1", "other 1", "gnu 1"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}

func TestPartsOf_findLicencesInFoldersOfLinkedPackagesAndAboveThem(t *testing.T) {
	module := t.TempDir()
	for _, name := range []string{"LICENSE", "used/LICENSE.md", "unused/LICENSE", "used/license.go"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(module, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(module, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := partsOf(`{"ImportPath": "m/used", "Dir": "`+module+`/used", "Module": {"Path": "m", "Version": "v1", "Dir": "`+module+`"}}`, "/go")
	if err != nil {
		t.Fatal(err)
	}
	files := parts["m v1"].files
	if len(files) != 2 || !files[filepath.Join(module, "LICENSE")] || !files[filepath.Join(module, "used/LICENSE.md")] {
		t.Errorf("found %v", files)
	}
}

func TestVersions_refuseWhatIsNoPartOfAFileName(t *testing.T) {
	for version, want := range map[string]bool{
		"1.2.3": true, "1.2.3-4-gabcdef0": true, "1.0.0-rc.1": true,
		"": false, "../1": false, "1 -X main.x=1": false, "-1": false,
	} {
		if got := versions.MatchString(version); got != want {
			t.Errorf("version %q: %v, want %v", version, got, want)
		}
	}
}
