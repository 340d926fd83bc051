package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rivo/uniseg"
	"golang.org/x/term"

	"github.com/backendstart/walpost/internal/printable"
)

// fileOf is the file behind a stream of the program, nil where it is none.
func fileOf(stream any) *os.File {
	if writer, ok := stream.(*printable.Writer); ok {
		stream = writer.Out
	}
	file, _ := stream.(*os.File)
	return file
}

// isTerminal reports whether a person may be at the other end of a reader or writer.
func isTerminal(stream any) bool {
	file := fileOf(stream)
	return file != nil && term.IsTerminal(int(file.Fd()))
}

// widthOf is how many characters fit into a line of a terminal; 0 where there is none, or it does not say.
func widthOf(stream any) int {
	file := fileOf(stream)
	if file == nil {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// textWidth is how many columns of a terminal a text takes: characters of Chinese, Japanese and Korean take two, marks that
// combine with the character before them none.
func textWidth(text string) int { return uniseg.StringWidth(text) }

// splitAt returns the first characters of a text that fit into a width, and the rest.
func splitAt(text string, width int) (head, rest string) {
	rest = text
	for state := -1; rest != ""; {
		_, next, taken, after := uniseg.FirstGraphemeClusterInString(rest, state)
		if width -= taken; width < 0 {
			break
		}
		rest, state = next, after
	}
	return text[:len(text)-len(rest)], rest
}

// cut shortens a line to a width; 0 is any.
func cut(line string, width int) string {
	if width > 0 && textWidth(line) > width {
		head, _ := splitAt(line, width-1)
		return head + "…"
	}
	return line
}

// leastText is the room below which a text in the last column says nothing any more.
const leastText = 20

// columns prints rows as an aligned table, the first of them as its head. At a terminal the last column, which is the
// one for sentences, is cut to what has room; where that is too little each row is a block of lines, so that what a person
// copies is whole.
func columns(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], textWidth(cell))
		}
	}
	width, last := widthOf(w), len(widths)-1
	room := width
	for _, taken := range widths[:last] {
		room -= taken + 2
	}
	if width > 0 && room < min(widths[last], leastText) {
		printBlocks(w, width, rows)
		return
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i == last && width > 0 {
				cell = cut(cell, room)
			}
			line.WriteString(cell + strings.Repeat(" ", max(0, widths[i]-textWidth(cell))+2))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// printBlocks prints each row as lines of name and value. Values that do not fit go on below, in full.
func printBlocks(w io.Writer, width int, rows [][]string) {
	head, widest := rows[0], 0
	for _, name := range head {
		widest = max(widest, textWidth(name))
	}
	room := max(2, width-widest-2) // the widest character takes two
	for i, row := range rows[1:] {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for j, cell := range row {
			name := ""
			if j < len(head) {
				name = head[j]
			}
			for {
				value, rest := splitAt(cell, room)
				fmt.Fprintln(w, strings.TrimRight(name+strings.Repeat(" ", widest-textWidth(name)+2)+value, " "))
				if name, cell = "", rest; cell == "" {
					break
				}
			}
		}
	}
}

// drawBar draws how far something is, in the line that the cursor is in.
func drawBar(w io.Writer, done, total int, what string) {
	const width = 30
	filled := width * done / total
	line := fmt.Sprintf("%s%s %d/%d %s", strings.Repeat("█", filled), strings.Repeat("░", width-filled), done, total, what)
	if room := widthOf(w); room > 0 {
		line = cut(line, room-1) // or the cursor is in the next line
	}
	fmt.Fprint(w, "\r\x1b[K"+line)
}
