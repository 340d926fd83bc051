package mask

import (
	"html"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxEscapes is how often a text is looked at with one more level of escapes undone.
const maxEscapes = 3

// unescaped is a text whose escapes were undone.
type unescaped struct {
	text string
	// starts is where each byte begins in the original, and the end of it; nil as long as nothing was undone.
	starts []int
}

// unescape undoes one level of the escapes of JSON, URLs and HTML. Without any, the result has no starts.
func (u unescaped) unescape() unescaped {
	if !strings.ContainsAny(u.text, `\%&`) {
		return unescaped{}
	}
	var b strings.Builder
	starts := make([]int, 0, len(u.text)+1)
	begin := func(at int) int {
		if u.starts == nil {
			return at
		}
		return u.starts[at]
	}
	for i := 0; i < len(u.text); {
		plain, n := escape(u.text[i:])
		if n == 0 {
			plain, n = u.text[i:i+1], 1
		}
		for range len(plain) {
			starts = append(starts, begin(i))
		}
		b.WriteString(plain)
		i += n
	}
	if b.Len() == len(u.text) {
		return unescaped{}
	}
	return unescaped{b.String(), append(starts, begin(len(u.text)))}
}

// escape reads one escape at the beginning of text; n is its length, 0 if there is none.
func escape(text string) (plain string, n int) {
	switch text[0] {
	case '%':
		if c, ok := number(text, 1, 3, 16); ok {
			return string([]byte{byte(c)}), 3
		}
	case '&':
		const longest = 12 // of those with a number, and of the names of ASCII characters
		end := strings.IndexByte(text[:min(len(text), longest)], ';')
		if end > 0 && !strings.ContainsAny(text[1:end], "& ") {
			if plain := html.UnescapeString(text[:end+1]); plain != text[:end+1] {
				return plain, end + 1
			}
		}
	case '\\':
		return backslash(text)
	}
	return "", 0
}

// backslash reads an escape of JSON, or of the languages that write like C.
func backslash(text string) (plain string, n int) {
	if len(text) < 2 {
		return "", 0
	}
	switch text[1] {
	case 'x':
		if c, ok := number(text, 2, 4, 16); ok {
			return string([]byte{byte(c)}), 4
		}
	case 'u':
		high, ok := number(text, 2, 6, 16)
		if !ok {
			return "", 0
		}
		if utf16.IsSurrogate(rune(high)) && strings.HasPrefix(text[6:], `\u`) {
			if low, ok := number(text, 8, 12, 16); ok {
				if r := utf16.DecodeRune(rune(high), rune(low)); r != utf8.RuneError {
					return string(r), 12
				}
			}
		}
		return string(rune(high)), 6
	case 'n':
		return "\n", 2
	case 't':
		return "\t", 2
	case 'r':
		return "\r", 2
	case '"', '\'', '\\', '/':
		return text[1:2], 2
	}
	return "", 0
}

func number(text string, from, to, base int) (value uint64, ok bool) {
	if len(text) < to {
		return 0, false
	}
	value, err := strconv.ParseUint(text[from:to], base, 32)
	return value, err == nil
}
