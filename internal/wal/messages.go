package wal

import (
	"encoding/binary"
	"fmt"
	"io"
)

// headerSize is that of a message of the server: its type, and its length without the type.
// (PostgreSQL manual, "Message Formats")
const headerSize = 1 + 4

// maxMessage is more than the server ever sends: it builds a message in memory of at most a gigabyte.
const maxMessage = 1 << 30

// message is one message of the server. Its body is valid until the next read.
type message struct {
	kind byte
	body []byte
}

// messageReader cuts what the server sends into messages, of which a read may bring many, or a part of one.
//
// The driver reads through it until the stream begins, and gets one message at a time: nothing of the stream is left in
// the driver's own buffer when Stream takes over.
type messageReader struct {
	source io.Reader
	buffer readBuffer
	inside int // what is left of the message that the driver is reading

	prefixes []string // of the logical messages whose content is wanted
	passing  int      // what is left of the message whose content is not held
}

// next takes the next message out of what was read. It is false if there is none, or only a part of one.
func (m *messageReader) next() (message, bool, error) {
	if m.passing > 0 {
		m.pass()
	}
	unread := m.buffer.unread()
	size, err := messageSize(unread)
	if size > maxBuffer && m.judgeContent(unread) == passed {
		cut := withoutContent(unread)
		m.passing = size
		m.pass()
		return cut, true, nil
	}
	if err != nil || size == 0 || size > len(unread) {
		return message{}, false, err
	}
	m.buffer.advance(size)
	return message{unread[0], unread[headerSize:size:size]}, true, nil
}

// messageSize is how many bytes the message has that text begins with, 0 if that cannot be told yet.
func messageSize(text []byte) (int, error) {
	if len(text) < headerSize {
		return 0, nil
	}
	length := int(binary.BigEndian.Uint32(text[1:]))
	if length < headerSize-1 || length > maxMessage {
		return 0, fmt.Errorf("message %q of %d bytes", text[0], length)
	}
	return 1 + length, nil
}

// fill reads once from the source, and waits for it. It returns how much came, and whether the source may have more.
func (m *messageReader) fill() (n int, full bool, err error) {
	if m.passing > 0 {
		m.pass()
	}
	size, err := messageSize(m.buffer.unread())
	if err != nil {
		return 0, false, err
	}
	if size > maxBuffer && m.judgeContent(m.buffer.unread()) != held {
		size = 0
	}
	return m.buffer.readFrom(m.source, size)
}

// Read gives the driver the next message, or a part of it.
func (m *messageReader) Read(p []byte) (int, error) {
	if m.inside == 0 {
		for {
			size, err := messageSize(m.buffer.unread())
			if err != nil {
				return 0, err
			}
			if m.inside = size; size != 0 {
				break
			}
			if _, _, err := m.fill(); err != nil {
				return 0, err
			}
		}
	}
	if len(m.buffer.unread()) == 0 {
		if _, _, err := m.buffer.readFrom(m.source, 0); err != nil {
			return 0, err
		}
	}
	unread := m.buffer.unread()
	n := copy(p, unread[:min(len(unread), m.inside)])
	m.buffer.advance(n)
	m.inside -= n
	return n, nil
}
