package cli

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/backendstart/walpost/internal/printable"
)

// terminal is a pseudo-terminal of some width, and what was written to it.
type terminal struct {
	*os.File
	t      *testing.T
	master *os.File
	screen *bufio.Scanner
}

func newTerminal(t *testing.T, width uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close(); master.Close() })
	p := &terminal{File: file, t: t, master: master, screen: bufio.NewScanner(master)}
	p.resize(width)
	return p
}

func (p *terminal) resize(width uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: width}); err != nil {
		p.t.Fatal(err)
	}
}

// lines are what was written since, up to a mark of its own.
func (p *terminal) lines() []string {
	p.t.Helper()
	const mark = "=end="
	fmt.Fprintln(p.File, mark)
	var lines []string
	for p.screen.Scan() {
		line, ended := strings.CutSuffix(p.screen.Text(), mark)
		if line != "" || !ended {
			lines = append(lines, line)
		}
		if ended {
			return lines
		}
	}
	p.t.Fatalf("the terminal ends after %q", lines)
	return nil
}

// S-201
func TestColumns_keepToTheWidthOfTheTerminal(t *testing.T) {
	rows := [][]string{
		{"SUBSCRIBER", "EVENT", "ATTEMPTS", "ERROR"},
		{"analytics", "01M8KYWXP684RBZYHB26RMQSXQ", "12", strings.Repeat("the receiver said no; ", 4)},
	}
	p := newTerminal(t, 80)
	columns(&printable.Writer{Out: p.File}, rows)
	got := p.lines()
	if len(got) != 2 || !strings.Contains(got[1], "01M8KYWXP684RBZYHB26RMQSXQ  12        the receiver said no") || !strings.HasSuffix(got[1], "…") {
		t.Errorf("80 wide it says %q", got)
	}
	wantNarrower(t, got, 80)

	// What a person copies is never cut: where the table has no room, each row is a block.
	p.resize(40)
	columns(p.File, rows)
	got = p.lines()
	want := []string{"SUBSCRIBER  analytics", "EVENT       01M8KYWXP684RBZYHB26RMQSXQ", "ATTEMPTS    12"}
	if len(got) < 3 || !slices.Equal(got[:3], want) {
		t.Errorf("40 wide it says %q, want %q", got, want)
	}
	wantNarrower(t, got, 40)

	var piped strings.Builder
	columns(&piped, rows)
	if !strings.Contains(piped.String(), rows[1][3][:60]) {
		t.Errorf("without a terminal it says %q", piped.String())
	}
}

// S-313: characters that take two columns, or none, are counted as the terminal does.
func TestColumns_countWideCharactersAsTheTerminalDoes(t *testing.T) {
	rows := [][]string{
		{"KEY", "STATE", "ERROR"},
		{"日本語の鍵", "dead", strings.Repeat("受信者が拒否した", 6)},
		{"e\u0301te\u0301", "dead", "👩‍👩‍👧 said no"},
		{"plain", "dead", "no"},
	}
	p := newTerminal(t, 50)
	columns(p.File, rows)
	got := p.lines()
	want := []string{
		"KEY         STATE  ERROR",
		"日本語の鍵  dead   受信者が拒否した受信者が拒否し…",
		"e\u0301te\u0301         dead   👩‍👩‍👧 said no",
		"plain       dead   no",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("50 wide it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, width := range []uint16{20, 9, 3} { // blocks of lines; whatever the width, they end
		p.resize(width)
		columns(p.File, rows)
		if got = p.lines(); !strings.Contains(strings.ReplaceAll(strings.Join(got, ""), " ", ""), "鍵") {
			t.Errorf("%d wide it says %q", width, got)
		}
	}

	// What was cut to the terminal takes one line of it, and what a narrower one has wrapped is erased whole.
	p.resize(20)
	live := newScreen(p.File, p.File)
	live.show(strings.Repeat("鍵", 30) + "\n")
	if got, want := p.lines(), []string{strings.Repeat("鍵", 9) + "…"}; !slices.Equal(got, want) {
		t.Errorf("shows %q, want %q", got, want)
	}
	p.resize(10)
	live.show("")
	if got, want := strings.Join(p.lines(), ""), "\x1b[2A\r\x1b[J"; got != want {
		t.Errorf("erases with %q, want %q", got, want)
	}
}

// S-201: a line that the terminal has wrapped takes two, and what is drawn again in place left the first of them behind.
func TestScreen_keepsToTheWidthOfTheTerminal(t *testing.T) {
	p := newTerminal(t, 20)
	live := newScreen(p.File, p.File)
	if !live.live {
		t.Fatal("a pseudo-terminal is taken for no terminal")
	}
	live.show("[####....] 4 of 10, 12s, left out 3\nshort\n")
	wantNarrower(t, p.lines(), 20)
	p.resize(10) // the terminal wraps what stands there
	live.show("")
	got := p.lines()
	if want := "\x1b[3A\r\x1b[J"; strings.Join(got, "") != want {
		t.Errorf("erases with %q, want %q", got, want)
	}
	live.show("done\n")
	if got := p.lines(); !slices.Equal(got, []string{"done"}) { // nothing to erase
		t.Errorf("shows %q", got)
	}
}

// S-201
func TestBar_keepsToTheWidthOfTheTerminal(t *testing.T) {
	p := newTerminal(t, 30)
	drawBar(p.File, 3, 10, "walpost and a poller of the same table")
	wantNarrower(t, p.lines(), 30)
}

// A device without a person at it is no terminal.
func TestIsTerminal_isNotDevNull(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) {
		t.Error("/dev/null is taken for a terminal")
	}
	if !isTerminal(&printable.Writer{Out: newTerminal(t, 80).File}) {
		t.Error("a pseudo-terminal is taken for none")
	}
}

func wantNarrower(t *testing.T, lines []string, width int) {
	t.Helper()
	for _, line := range lines {
		line = strings.TrimPrefix(strings.ReplaceAll(line, "\r", ""), "\x1b[K")
		if n := textWidth(line); n > width {
			t.Errorf("%d columns in a terminal of %d: %q", n, width, line)
		}
	}
}
