package wal

import (
	"bytes"
	"slices"

	"github.com/jackc/pglogrepl"
)

// Any role that may connect can write a logical message of a gigabyte, and the server sends it to every reader. One that is
// of no source is taken as if it had no content: what does not fit into the buffer is read past and never held.
// (docs/postgres.md §3)

// Where the parts of a logical message stand in what the server sends: behind the header of the message and that of the
// data frame come a letter, flags, a position, the prefix with a NUL, and the content with its length.
// (PostgreSQL manual, "Logical Replication Message Formats")
const (
	frameAt  = headerSize
	letterAt = frameAt + 1 + 8 + 8 + 8
	flagsAt  = letterAt + 1
	prefixAt = flagsAt + 1 + 8
	// shownPrefix is how much of a foreign prefix is kept.
	shownPrefix = 64
)

// content is what becomes of the content of a message.
type content int

const (
	undecided content = iota // too little of the message is there
	held
	passed // it is of no use for anyone
)

// judgeContent looks at the beginning of a message that does not fit into the buffer.
func (m *messageReader) judgeContent(unread []byte) content {
	if len(unread) <= prefixAt {
		return undecided
	}
	if unread[0] != 'd' || unread[frameAt] != pglogrepl.XLogDataByteID || unread[letterAt] != 'M' {
		return held
	}
	if unread[flagsAt]&1 == 0 { // comes before its transaction, or from one that is rolled back: no event
		return passed
	}
	prefix, _, whole := bytes.Cut(unread[prefixAt:], []byte{0})
	isOurs := func(ours string) bool { return string(prefix) == ours }
	mayBeOurs := func(ours string) bool { return len(prefix) <= len(ours) && ours[:len(prefix)] == string(prefix) }
	switch {
	case whole && slices.ContainsFunc(m.prefixes, isOurs):
		return held
	case !whole && slices.ContainsFunc(m.prefixes, mayBeOurs):
		return undecided
	}
	return passed
}

// withoutContent is the message that unread begins with, with a part of its prefix and no content.
func withoutContent(unread []byte) message {
	prefix, _, _ := bytes.Cut(unread[prefixAt:], []byte{0})
	body := slices.Concat(unread[headerSize:prefixAt], prefix[:min(len(prefix), shownPrefix)], make([]byte, 1+4))
	return message{unread[0], body}
}

// pass reads past what was read of a message's content that is not held.
func (m *messageReader) pass() {
	n := min(m.passing, len(m.buffer.unread()))
	m.buffer.advance(n)
	m.passing -= n
}
