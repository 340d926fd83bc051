package doctor_test

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

var discard = slog.New(slog.DiscardHandler)

// A sound house: nothing to say before the first start of a relay and after it, and every check speaks.
func TestDoctor_hasNothingToSayAboutASoundHouse(t *testing.T) {
	w := newWorld(t, testdb.NewServer(t, sound))
	for _, when := range []string{"before the first start", "after it"} {
		report := doctor.Run(t.Context(), w.options)
		var spoke []string
		for _, f := range report.Findings {
			spoke = append(spoke, f.Check)
			// Without a standby, nobody can know about it.
			if f.Level != doctor.OK && f.Check != "standby-sync" {
				t.Errorf("%s the doctor says%s", when, describe([]doctor.Finding{f}))
			}
		}
		if !slices.Equal(spoke, doctor.Checks()) {
			t.Errorf("%s %v speak, want %v", when, spoke, doctor.Checks())
		}
		w.relay()
	}
}

// Whoever meets an id looks it up: the page and the program have the same ones, in the same order.
func TestDocs_explainEachCheck(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, heading := range regexp.MustCompile("(?m)^### `([a-z-]+)`$").FindAllStringSubmatch(string(page), -1) {
		got = append(got, heading[1])
	}
	if want := doctor.Checks(); !slices.Equal(got, want) {
		t.Errorf("docs/doctor.md explains %v, want %v", got, want)
	}
}
