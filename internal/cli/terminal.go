package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

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

// cut shortens a line to a width; 0 is any.
func cut(line string, width int) string {
	if runes := []rune(line); width > 0 && len(runes) > width {
		return string(runes[:width-1]) + "…"
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
			widths[i] = max(widths[i], len([]rune(cell)))
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
			line.WriteString(cell + strings.Repeat(" ", max(0, widths[i]-len([]rune(cell)))+2))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// printBlocks prints each row as lines of name and value. Values that do not fit go on below, in full.
func printBlocks(w io.Writer, width int, rows [][]string) {
	head, widest := rows[0], 0
	for _, name := range head {
		widest = max(widest, len([]rune(name)))
	}
	room := max(1, width-widest-2)
	for i, row := range rows[1:] {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for j, cell := range row {
			name := ""
			if j < len(head) {
				name = head[j]
			}
			for value := []rune(cell); ; name = "" {
				n := min(room, len(value))
				fmt.Fprintln(w, strings.TrimRight(name+strings.Repeat(" ", widest-len([]rune(name))+2)+string(value[:n]), " "))
				if value = value[n:]; len(value) == 0 {
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
