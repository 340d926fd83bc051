package safefile

import "strings"

// maxLive is how large a file may be that is read again: it holds one secret.
const maxLive = 1 << 20

// livePrefix begins a text that stands for a file. No configuration can say it: neither YAML nor an environment
// variable holds NUL.
const livePrefix = "\x00file:"

// Live returns a text that stands for what a file holds, read again at each Latest: a secret is rotated while the
// program runs. text is what the file holds now.
func Live(path, text string) string { return livePrefix + path + "\x00" + text }

// Latest returns what the file of a Live text holds now, or held at the start where it cannot be read any more: some
// remove it then. Any other text is returned as it is.
func Latest(text string) string {
	path, first, live := cut(text)
	if !live {
		return text
	}
	if content, err := Read(path, maxLive); err == nil {
		return TrimNewline(string(content))
	}
	return first
}

// AtStart returns what the file of a Live text held when that was made, and any other text as it is.
func AtStart(text string) string {
	_, first, _ := cut(text)
	return first
}

// IsLive reports whether Latest can change.
func IsLive(text string) bool { return strings.HasPrefix(text, livePrefix) }

func cut(text string) (path, first string, live bool) {
	rest, live := strings.CutPrefix(text, livePrefix)
	if !live {
		return "", text, false
	}
	path, first, _ = strings.Cut(rest, "\x00")
	return path, first, true
}

// TrimNewline removes the newline that editors put at the end of a file: it is no part of a secret.
func TrimNewline(content string) string {
	return strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
}
