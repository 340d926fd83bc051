package main

import (
	"strings"
	"testing"
)

// Recorded from go test -json, shortened.
const (
	passed = `{"Action":"run","Package":"x/a","Test":"TestGood"}
{"Action":"output","Package":"x/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"x/a","Test":"TestGood","Elapsed":0}
{"Action":"pass","Package":"x/a","Elapsed":0.5}
`
	failed = `{"Action":"output","Package":"x/b","Test":"TestBad/sub","Output":"    b_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"x/b","Test":"TestBad/sub","Elapsed":0}
{"Action":"fail","Package":"x/b","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"x/b","Elapsed":0.1}
`
	skipped = `{"Action":"output","Package":"x/c","Test":"TestLazy","Output":"    c_test.go:3: no server\n"}
{"Action":"skip","Package":"x/c","Test":"TestLazy","Elapsed":0}
{"Action":"pass","Package":"x/c","Elapsed":0.1}
`
	noFiles = `{"Action":"output","Package":"x/d","Output":"?   \tx/d\t[no test files]\n"}
{"Action":"skip","Package":"x/d","Elapsed":0}
`
	notBuilt = `{"ImportPath":"x/e [x/e.test]","Action":"build-output","Output":"e_test.go:3:27: undefined: y\n"}
{"ImportPath":"x/e [x/e.test]","Action":"build-fail"}
{"Action":"fail","Package":"x/e","Elapsed":0,"FailedBuild":"x/e [x/e.test]"}
`
	died = `{"Action":"run","Package":"x/f","Test":"TestEndless"}
{"Action":"output","Package":"x/f","Test":"TestEndless","Output":"=== RUN   TestEndless\n"}
{"Action":"output","Package":"x/f","Output":"signal: killed\n"}
{"Action":"fail","Package":"x/f","Elapsed":0}
`
)

func TestReport_countsAndShows(t *testing.T) {
	tests := []struct {
		name   string
		events string
		want   string
		shows  []string
		hides  []string
	}{
		{"a pass in one line", passed, "1 passed, 0 failed, 0 skipped", []string{"ok    x/a 0.5s"}, []string{"chatter"}},
		{"the words of a failed subtest", failed, "0 passed, 2 failed, 0 skipped", []string{"TestBad/sub", "got 1, want 2"}, nil},
		{"why a test was skipped", skipped, "0 passed, 0 failed, 1 skipped", []string{"SKIP  x/c TestLazy", "no server"}, nil},
		{"nothing for a package without tests", noFiles, "0 passed, 0 failed, 0 skipped", nil, []string{"x/d"}},
		{"what the compiler said", notBuilt, "0 passed, 1 failed, 0 skipped", []string{"undefined: y"}, nil},
		{"who was running when the process died", died, "0 passed, 1 failed, 0 skipped", []string{"TestEndless", "signal: killed"}, nil},
		{"all packages together", passed + failed + skipped, "1 passed, 2 failed, 1 skipped", nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			got, err := report(strings.NewReader(test.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want {
				t.Errorf("counted %q, want %q", got, test.want)
			}
			for _, want := range test.shows {
				if !strings.Contains(out.String(), want) {
					t.Errorf("shows %q, want %q in it", out.String(), want)
				}
			}
			for _, unwanted := range test.hides {
				if strings.Contains(out.String(), unwanted) {
					t.Errorf("shows %q, want no %q in it", out.String(), unwanted)
				}
			}
		})
	}
}

func TestReport_saysWhenTheOutputBreaksOff(t *testing.T) {
	if _, err := report(strings.NewReader(passed+`{"Action":"ru`), &strings.Builder{}); err == nil {
		t.Error("a torn line was taken for the end")
	}
}

func TestVerdict_acceptsSkippedTestsOnlyOutsideCI(t *testing.T) {
	tests := []struct {
		counts counts
		ci     bool
		good   bool
	}{
		{counts{passed: 1}, true, true},
		{counts{passed: 1, skipped: 1}, false, true},
		{counts{passed: 1, skipped: 1}, true, false},
		{counts{passed: 1, failed: 1}, false, false},
		{counts{}, false, false},
	}
	for _, test := range tests {
		if err := test.counts.verdict(test.ci); (err == nil) != test.good {
			t.Errorf("verdict on %s with CI=%v: %v, want good=%v", test.counts, test.ci, err, test.good)
		}
	}
}
