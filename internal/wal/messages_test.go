package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// pieces is a connection that brings text in pieces of random size.
type pieces struct {
	text []byte
	most int // of a piece
	rand *rand.Rand
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.text) == 0 {
		return 0, io.EOF
	}
	n := copy(to, p.text[:min(len(p.text), 1+p.rand.IntN(p.most))])
	p.text = p.text[n:]
	return n, nil
}

// appendMessage appends a message as the server sends it.
func appendMessage(to []byte, kind byte, body []byte) []byte {
	to = binary.BigEndian.AppendUint32(append(to, kind), uint32(len(body)+4))
	return append(to, body...)
}

// Whatever pieces a connection brings, they are the same messages.
func TestMessageReader_findsTheMessagesInAnyPieces(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 0))
		var sent []byte
		var want []string
		for i := range 200 {
			size := random.IntN(300)
			if random.IntN(20) == 0 {
				size = random.IntN(3 * minBuffer)
			}
			body := bytes.Repeat([]byte{byte(i)}, size)
			sent = appendMessage(sent, 'd', body)
			want = append(want, fmt.Sprint('d', size, i%256))
		}
		m := &messageReader{source: &pieces{sent, []int{1 + int(seed), 70_000, 1 << 20}[seed%3], random}}
		var got []string
		for {
			next, ok, err := m.next()
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				if !bytes.Equal(next.body, bytes.Repeat([]byte{byte(len(got))}, len(next.body))) {
					t.Fatalf("seed %d: message %d has bytes of another", seed, len(got))
				}
				got = append(got, fmt.Sprint(rune(next.kind), len(next.body), len(got)%256))
				continue
			}
			if _, _, err := m.fill(); errors.Is(err, io.EOF) {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("seed %d: %d messages of %d, or others than were sent", seed, len(got), len(want))
		}
	}
}

// appendLogical appends a logical message of pgoutput in a data frame.
func appendLogical(to []byte, transactional bool, prefix string, content []byte) []byte {
	body := append([]byte{'w'}, make([]byte, 24)...)
	body = append(body, 'M', 0)
	if transactional {
		body[len(body)-1] = 1
	}
	body = append(append(append(body, make([]byte, 8)...), prefix...), 0)
	body = append(binary.BigEndian.AppendUint32(body, uint32(len(content))), content...)
	return appendMessage(to, 'd', body)
}

// S-316: a message of no source is taken without its content, whatever its size, its prefix and the pieces in which it comes;
// one of a source is whole, and nothing between them is lost.
func TestMessageReader_holdsNoContentOfAForeignMessage(t *testing.T) {
	const large = 5 * maxBuffer
	content := bytes.Repeat([]byte("x"), large)
	endless := strings.Repeat("p", large)
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 0))
		var sent []byte
		for _, m := range []struct {
			transactional bool
			prefix        string
			content       []byte
		}{
			{true, "orders", []byte("small")}, {false, "orders", content}, {true, "other", content}, {true, "order", content},
			{true, "ordersx", content}, {true, "", content}, {true, endless, nil}, {false, endless, []byte("y")}, {true, "other", []byte("small")}, {true, "orders", content},
		} {
			sent = appendLogical(sent, m.transactional, m.prefix, m.content)
			sent = appendMessage(sent, 'd', []byte("between"))
		}
		m := &messageReader{source: &pieces{sent, []int{1 + 13*int(seed), 70_000, 1 << 22}[seed%3], random}, prefixes: []string{"payments", "orders"}}
		if seed%3 == 0 { // bytes one by one would take minutes
			m.source.(*pieces).most = 3000
		}
		var got []string
		most := 0
		for {
			next, ok, err := m.next()
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				text := string(next.body)
				if next.body[0] == 'w' {
					prefix, rest, _ := strings.Cut(text[prefixAt-headerSize:], "\x00")
					if n := int(binary.BigEndian.Uint32([]byte(rest))); n != len(rest)-4 {
						t.Fatalf("seed %d: %d bytes of content, and %d are told", seed, len(rest)-4, n)
					}
					text = fmt.Sprintf("%d %s %d", text[flagsAt-headerSize], prefix, len(rest)-4)
				}
				got = append(got, text)
				continue
			}
			if len(got) < 18 { // before the one of a source
				most = max(most, len(m.buffer.bytes))
			}
			if _, _, err := m.fill(); errors.Is(err, io.EOF) {
				break
			}
		}
		cut := strings.Repeat("p", shownPrefix)
		want := []string{"1 orders 5", "0 orders 0", "1 other 0", "1 order 0", "1 ordersx 0", "1  0", "1 " + cut + " 0", "0 " + cut + " 0", "1 other 5", fmt.Sprintf("1 orders %d", large)}
		if strings.Join(got, ", ") != strings.Join(want, ", between, ")+", between" {
			t.Fatalf("seed %d: got %q", seed, got)
		}
		if most > maxBuffer {
			t.Errorf("seed %d: %d bytes are held", seed, most)
		}
	}
}

// What the driver has not asked for is left to the stream, although it came with the same read.
func TestMessageReader_givesTheDriverOneMessageAtATime(t *testing.T) {
	sent := appendMessage(appendMessage(appendMessage(nil, 'W', []byte{0, 0, 0}), 'd', []byte("first")), 'd', []byte("second"))
	m := &messageReader{source: bytes.NewReader(sent)}
	large := make([]byte, 8192) // as the driver asks
	if n, err := m.Read(large); n != headerSize+3 || err != nil {
		t.Fatalf("the driver got %d bytes, %v, want the first message and nothing else", n, err)
	}
	for _, want := range []string{"first", "second"} {
		if next, ok, err := m.next(); !ok || err != nil || string(next.body) != want {
			t.Errorf("got %q, %v, %v, want %q", next.body, ok, err, want)
		}
	}
}

func TestMessageReader_refusesALengthThatCannotBe(t *testing.T) {
	for _, length := range []uint32{0, 3, 1<<30 + 1, 1<<32 - 1} {
		m := &messageReader{source: bytes.NewReader(binary.BigEndian.AppendUint32([]byte{'d'}, length))}
		if _, _, err := m.fill(); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := m.next(); ok || err == nil {
			t.Errorf("a message of length %d is taken for one", length)
		}
	}
}

// A buffer follows the stream, and is never larger than a large stream or message needs it.
func TestReadBuffer_growsWithTheStreamAndShrinksAgain(t *testing.T) {
	endless := &pieces{most: 1, rand: rand.New(rand.NewPCG(1, 1))}
	var b readBuffer
	read := func(n, need int) {
		endless.text = make([]byte, n)
		for len(endless.text) > 0 {
			endless.most = 1 << 30
			if _, _, err := b.readFrom(endless, need); err != nil {
				t.Fatal(err)
			}
			if need == 0 {
				b.advance(len(b.unread()))
			}
		}
		b.advance(len(b.unread()))
	}
	read(1000, 0)
	if len(b.bytes) != minBuffer {
		t.Errorf("it begins with %d bytes, want %d", len(b.bytes), minBuffer)
	}
	read(20*maxBuffer, 0)
	if len(b.bytes) != maxBuffer {
		t.Errorf("a stream that fills it makes it %d bytes, want %d", len(b.bytes), maxBuffer)
	}
	for range 6 * judgedReads {
		read(1000, 0)
	}
	if len(b.bytes) != minBuffer {
		t.Errorf("after many small reads it has %d bytes, want %d", len(b.bytes), minBuffer)
	}
	read(30*maxBuffer, 30*maxBuffer)
	if len(b.bytes) != 30*maxBuffer {
		t.Errorf("with a message of %d bytes it has %d", 30*maxBuffer, len(b.bytes))
	}
	read(1000, 0)
	if len(b.bytes) > maxBuffer {
		t.Errorf("when the message is taken it still has %d bytes", len(b.bytes))
	}
}
