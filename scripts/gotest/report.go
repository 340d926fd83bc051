package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of "go test -json". (go doc test2json)
type event struct {
	Action  string
	Package string
	Test    string // "" for what concerns the package as a whole
	Output  string
	Elapsed float64 // seconds
}

// counts are tests and subtests, and packages that failed outside of any test.
type counts struct{ passed, failed, skipped int }

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// verdict is what the counts say about a run that go test itself found good.
func (c counts) verdict(ci bool) error {
	switch {
	case c.failed > 0:
		return errors.New("tests failed")
	case c.passed+c.skipped == 0:
		return errors.New("no test ran")
	case ci && c.skipped > 0:
		return errors.New("tests were skipped, which CI=true does not accept; their names stand above")
	}
	return nil
}

type testKey struct{ pkg, test string }

// report reads the events of a run and writes them for a person, as they come. Output of a test is held
// back until the test has ended, and dropped if it passed.
func report(events io.Reader, w io.Writer) (counts, error) {
	var (
		total      counts
		held       = map[testKey]*strings.Builder{}
		testFailed = map[string]bool{} // packages with a test that failed
		decoder    = json.NewDecoder(events)
	)
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return total, nil
		} else if err != nil {
			return total, fmt.Errorf("read the output of go test: %w", err)
		}
		key := testKey{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			if held[key] == nil {
				held[key] = &strings.Builder{}
			}
			held[key].WriteString(e.Output)
		case "pass", "fail", "skip":
			if e.Test == "" {
				endPackage(w, e, held, testFailed[e.Package], &total)
				continue
			}
			switch e.Action {
			case "pass":
				total.passed++
			case "skip":
				total.skipped++
				fmt.Fprintf(w, "SKIP  %s %s\n%s", e.Package, e.Test, text(held[key]))
			case "fail":
				total.failed++
				testFailed[e.Package] = true
				fmt.Fprintf(w, "FAIL  %s %s\n%s", e.Package, e.Test, text(held[key]))
			}
			delete(held, key)
		}
	}
}

// endPackage writes how a package ended. With one that failed it shows everything still held back: that is
// the output of tests that never ended, and what was written outside of any test. A package can fail
// without a failed test, when it does not build or its process dies; it then counts as one failure.
func endPackage(w io.Writer, e event, held map[testKey]*strings.Builder, testFailed bool, total *counts) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(w, "ok    %s %.1fs\n", e.Package, e.Elapsed)
	case "fail":
		if !testFailed {
			total.failed++
		}
		fmt.Fprint(w, "FAIL  ", e.Package, "\n")
	}
	for key, output := range held {
		if key.pkg != e.Package {
			continue
		}
		if e.Action == "fail" {
			fmt.Fprint(w, text(output))
		}
		delete(held, key)
	}
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}
