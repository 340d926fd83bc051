package pgoutput_test

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/pgoutput"
)

func TestDecode_allocatesNothingForATransaction(t *testing.T) {
	d := pgoutput.NewDecoder()
	var begin, insert, commit []byte
	for _, frame := range readFrames(t, "rows") {
		message := decode(t, d, frame)
		switch message.(type) {
		case *pgoutput.Begin:
			begin = frame
		case *pgoutput.Insert:
			insert = frame
		case *pgoutput.Commit:
			commit = frame
		}
	}
	got := testing.AllocsPerRun(1000, func() {
		for _, frame := range [][]byte{begin, insert, insert, commit} {
			if _, err := d.Decode(frame); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got != 0 {
		t.Errorf("allocations per transaction: got %v, want 0", got)
	}
}

func TestDecode_valuesPointIntoTheFrame(t *testing.T) {
	d := pgoutput.NewDecoder()
	decode(t, d, relation(1, "id"))
	frame := insert(1, "abc")
	row := decode(t, d, frame).(*pgoutput.Insert)
	frame[len(frame)-1] = 'X'
	if got, want := string(row.Values[0]), "abX"; got != want {
		t.Errorf("got %q, want %q: the value was copied", got, want)
	}
	if got, want := cap(row.Values[0]), 3; got != want {
		t.Errorf("capacity: got %d, want %d: appending to a value would write into its neighbour", got, want)
	}
}

func TestDecode_tellsNullFromEmpty(t *testing.T) {
	d := pgoutput.NewDecoder()
	decode(t, d, relation(1, "a", "b"))
	row := decode(t, d, []byte("I\x00\x00\x00\x01N\x00\x02nt\x00\x00\x00\x00")).(*pgoutput.Insert)
	if row.Values[0] != nil {
		t.Errorf("NULL: got %q, want nil", row.Values[0])
	}
	if row.Values[1] == nil || len(row.Values[1]) != 0 {
		t.Errorf("empty text: got %#v, want empty and not nil", row.Values[1])
	}
}

func TestDecode_aTableDescribedAgainIsANewRelation(t *testing.T) {
	d := pgoutput.NewDecoder()
	decode(t, d, relation(1, "id"))
	before := decode(t, d, insert(1, "x")).(*pgoutput.Insert).Relation
	decode(t, d, relation(1, "id", "note"))
	after := decode(t, d, insert(1, "x", "y")).(*pgoutput.Insert).Relation
	if before == after {
		t.Error("the relation was reused: holders of the pointer would not notice the change")
	}
	if got, want := len(before.Columns), 1; got != want {
		t.Errorf("columns of the old relation: got %d, want %d", got, want)
	}
}

func TestDecode_rowBelongsToItsOwnRelationNotToTheLastOne(t *testing.T) { // F-13
	d := pgoutput.NewDecoder()
	decode(t, d, relation(1, "root"))
	decode(t, d, relation(2, "leaf", "other"))
	row := decode(t, d, insert(1, "x")).(*pgoutput.Insert)
	if got, want := row.Relation.ID, uint32(1); got != want {
		t.Errorf("relation: got %d, want %d", got, want)
	}
}

func TestDecode_namesLetterAndOffsetOfWhatItCannotRead(t *testing.T) {
	for _, test := range []struct{ name, frame, want string }{
		{"nothing", "", "no bytes"},
		{"unknown letter", "S\x00\x00\x00\x01\x01", `'S' at byte 0: unknown type of message`},
		{"truncated begin", "B\x00\x00", `'B' at byte 1: 8 bytes wanted, 2 left`},
		{"bytes after commit", "C" + strings.Repeat("\x00", 25) + "??", `'C' at byte 26: 2 bytes left over`},
		{"row of a relation never described", "I\x00\x00\x00\x09N\x00\x00", `'I' at byte 5: relation 9 was not described`},
		{"more values than columns", "I\x00\x00\x00\x01N\x00\x02nn", `'I' at byte 8: 2 values for the 1 columns of public.t`},
		{"unchanged value in a new row", "I\x00\x00\x00\x01N\x00\x01u", `'I' at byte 9: column "id" of public.t: value of kind 'u' in a new row`},
		{"binary value", "I\x00\x00\x00\x01N\x00\x01b\x00\x00\x00\x00", `value of kind 'b' in a new row`},
		{"old row where the new one belongs", "I\x00\x00\x00\x01O\x00\x01n", `'I' at byte 5: part 'O' where "N" was expected`},
		{"binary value in an update", "U\x00\x00\x00\x01N\x00\x01b", `'U' at byte 9: value of kind 'b'`},
		{"delete without a key", "D\x00\x00\x00\x01N\x00\x01n", `'D' at byte 5: part 'N' where "KO" was expected`},
		{"value that says it is 4 GB", "I\x00\x00\x00\x01N\x00\x01t\xff\xff\xff\xff", `4294967295 bytes wanted, 0 left`},
		{"message that says it is 4 GB", "M\x01\x00\x00\x00\x00\x00\x00\x00\x00p\x00\xff\xff\xff\xff", `4294967295 bytes wanted, 0 left`},
		{"truncate of 4 billion tables", "T\xff\xff\xff\xff\x00", `17179869180 bytes wanted, 0 left`},
		{"relation of 65535 columns", "R\x00\x00\x00\x01s\x00t\x00d\xff\xff", `'R' at byte 12: 65535 columns do not fit into 0 bytes`},
		{"name without end", "Y\x00\x00\x00\x01public", `'Y' at byte 5: a name without its end`},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := pgoutput.NewDecoder()
			decode(t, d, relation(1, "id"))
			_, err := d.Decode([]byte(test.frame))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestDecode_everyCutOfARealFrameIsAnError(t *testing.T) {
	for _, s := range scenarios {
		d := pgoutput.NewDecoder()
		for i, frame := range readFrames(t, s.name) {
			for cut := range frame {
				if message, err := d.Decode(frame[:cut]); err == nil {
					t.Fatalf("%s: frame %d cut to %d of %d bytes: got %T, want an error", s.name, i, cut, len(frame), message)
				}
			}
			decode(t, d, frame)
		}
	}
}

func TestDecode_hostileLengthsCostNoMemory(t *testing.T) {
	d := pgoutput.NewDecoder()
	decode(t, d, relation(1, "id"))
	hostile := [][]byte{
		[]byte("I\x00\x00\x00\x01N\x00\x01t\x7f\xff\xff\xff"),
		[]byte("M\x01\x00\x00\x00\x00\x00\x00\x00\x00p\x00\x7f\xff\xff\xff"),
		[]byte("R\x00\x00\x00\x01s\x00t\x00d\xff\xff"),
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, frame := range hostile {
		if _, err := d.Decode(frame); err == nil {
			t.Errorf("%q: got no error", frame)
		}
	}
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10); got > most {
		t.Errorf("allocated %d bytes for frames of a few bytes, want at most %d", got, most)
	}
}

// FuzzDecode looks for panics, and for messages that hold what was not in the frame.
func FuzzDecode(f *testing.F) {
	var relations [][]byte
	for _, s := range scenarios {
		for _, frame := range readFrames(f, s.name) {
			f.Add(frame)
			if frame[0] == 'R' {
				relations = append(relations, frame)
			}
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		d := pgoutput.NewDecoder()
		for _, r := range relations {
			decode(t, d, r)
		}
		message, err := d.Decode(frame)
		if err != nil {
			if len(frame) > 0 && !strings.Contains(err.Error(), "at byte") {
				t.Errorf("error without an offset: %v", err)
			}
			return
		}
		switch m := message.(type) {
		case *pgoutput.Insert:
			total := 0
			for _, value := range m.Values {
				total += len(value)
			}
			if len(m.Values) != len(m.Relation.Columns) || total > len(frame) {
				t.Errorf("%d values with %d bytes for %d columns from a frame of %d bytes", len(m.Values), total, len(m.Relation.Columns), len(frame))
			}
		case *pgoutput.Relation:
			if 10*len(m.Columns) > len(frame) {
				t.Errorf("%d columns from %d bytes", len(m.Columns), len(frame))
			}
		}
		if _, err := d.Decode(append(frame, 0)); err == nil {
			t.Errorf("%T: a byte more is no error", message)
		}
	})
}

func decode(t testing.TB, d *pgoutput.Decoder, frame []byte) pgoutput.Message {
	t.Helper()
	message, err := d.Decode(frame)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// relation and insert build the frames of a table public.t with text columns.
func relation(id uint32, columns ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, id)
	b = append(b, "public\x00t\x00d"...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(columns)))
	for _, name := range columns {
		b = append(b, 0)
		b = append(append(b, name...), 0)
		b = append(b, 0, 0, 0, 25, 0xff, 0xff, 0xff, 0xff) // type text, no modifier
	}
	return b
}

func insert(id uint32, values ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, id)
	b = append(b, 'N')
	b = binary.BigEndian.AppendUint16(b, uint16(len(values)))
	for _, value := range values {
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(value)))
		b = append(b, value...)
	}
	return b
}
