package wal

import "io"

const (
	// minBuffer and maxBuffer are the sizes between which a buffer follows the stream. A larger one is made only for a
	// message that does not fit.
	minBuffer = 64 << 10
	maxBuffer = 1 << 20
	// judgedReads is after how many reads a buffer may shrink.
	judgedReads = 256
)

// readBuffer holds what was read from a connection and not taken yet. It doubles when a read fills it, and halves when
// many reads in a row have used a quarter of it at most. What a large message took is given back after it.
type readBuffer struct {
	bytes      []byte
	start, end int // of what is not taken
	size       int // that bytes shall have
	reads      int // since the size was last judged
	most       int // bytes that they have used
}

// unread is what was read and not taken. It is valid until the next read.
func (b *readBuffer) unread() []byte { return b.bytes[b.start:b.end] }

// advance counts the first n bytes of unread as taken.
func (b *readBuffer) advance(n int) { b.start += n }

// readFrom reads once from a source, into a buffer that has room for at least so many bytes in all. It returns how much
// came, and whether that has filled the buffer, so that the source may have more.
func (b *readBuffer) readFrom(source io.Reader, need int) (n int, full bool, err error) {
	b.makeRoom(need)
	n, err = source.Read(b.bytes[b.end:])
	b.end += n
	full = b.end == len(b.bytes)
	b.judge(full)
	return n, full, err
}

// makeRoom moves what is not taken to the front of a buffer with room for more.
func (b *readBuffer) makeRoom(need int) {
	b.size = max(b.size, minBuffer)
	unread := b.unread()
	size := b.size
	if need := max(need, len(unread)+1); need > size {
		size = (need + minBuffer - 1) / minBuffer * minBuffer
	}
	target := b.bytes
	tooLarge := size < len(target) && (b.reads == 0 || len(target) > maxBuffer)
	switch {
	case size > len(target) || tooLarge:
		target = make([]byte, size)
	case b.start == 0:
		return
	}
	b.start, b.end, b.bytes = 0, copy(target, unread), target
}

// judge changes the size of the buffer by how much the reads have used of it.
func (b *readBuffer) judge(full bool) {
	b.reads++
	b.most = max(b.most, b.end)
	switch {
	case full && b.size < maxBuffer:
		b.size *= 2
	case b.reads < judgedReads:
		return
	case b.most <= b.size/4 && b.size > minBuffer:
		b.size /= 2
	}
	b.reads, b.most = 0, 0
}
