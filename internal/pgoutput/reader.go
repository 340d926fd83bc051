package pgoutput

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// A reader walks through one message. After the first fault it returns zeros and stays where it is, so
// that a message can be read field by field and asked once at the end.
type reader struct {
	data  []byte
	at    int
	wrong string // the first fault, "" while there is none
}

func (r *reader) fail(format string, args ...any) {
	if r.wrong == "" {
		r.wrong = fmt.Sprintf(format, args...)
	}
}

// bytes returns the next n bytes. Its result has no spare capacity, so appending to it copies, and is
// not nil when n is 0.
func (r *reader) bytes(n int64) []byte {
	if r.wrong != "" {
		return nil
	}
	if left := int64(len(r.data) - r.at); n > left {
		r.fail("%d bytes wanted, %d left", n, left)
		return nil
	}
	end := r.at + int(n)
	b := r.data[r.at:end:end]
	r.at = end
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// time reads microseconds since 2000-01-01 UTC.
func (r *reader) time() time.Time {
	const epoch = 946684800 // 2000-01-01 in Unix seconds
	µs := int64(r.uint64())
	return time.Unix(epoch+µs/1e6, µs%1e6*1e3).UTC()
}

// cstring reads up to a zero byte, which it leaves out.
func (r *reader) cstring() []byte {
	if r.wrong != "" {
		return nil
	}
	n := bytes.IndexByte(r.data[r.at:], 0)
	if n < 0 {
		r.fail("a name without its end")
		return nil
	}
	name := r.bytes(int64(n))
	r.at++
	return name
}

// peek returns the next byte without taking it, 0 at the end.
func (r *reader) peek() byte {
	if r.at < len(r.data) {
		return r.data[r.at]
	}
	return 0
}

// expect takes the letter of a part, which must be one of kinds.
func (r *reader) expect(kinds string) {
	if kind := r.byte(); r.wrong == "" && strings.IndexByte(kinds, kind) < 0 {
		r.at--
		r.fail("part %q where %q was expected", kind, kinds)
	}
}
