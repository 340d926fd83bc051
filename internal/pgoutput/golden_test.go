package pgoutput_test

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/pgoutput"
)

var update = flag.Bool("update", false, "record the golden files again from the test server")

// A golden case is two files: testdata/<name>.hex has the frames as a real server sent them, one a line,
// and testdata/<name>.golden what they mean, with numbers that differ from server to server replaced.

func TestDecode_readsWhatARealServerSent(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			got := dump(t, readFrames(t, s.name))
			want, err := os.ReadFile(filepath.Join("testdata", s.name+".golden"))
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// readFrames returns the recorded frames of a scenario.
func readFrames(t testing.TB, name string) [][]byte {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var frames [][]byte
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		frame, err := hex.DecodeString(lines.Text())
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		frames = append(frames, frame)
	}
	if lines.Err() != nil || len(frames) == 0 {
		t.Fatalf("%s: %d frames, %v", file.Name(), len(frames), lines.Err())
	}
	return frames
}

// dump writes frames for people. LSNs, xids, times and oids become L1, X1, T1, O1 in the order in which
// they appear, so that it still shows which ones are equal.
func dump(t *testing.T, frames [][]byte) string {
	t.Helper()
	var (
		out   strings.Builder
		d     = pgoutput.NewDecoder()
		lsns  = names[event.LSN]("L")
		xids  = names[uint32]("X")
		times = names[time.Time]("T")
		oids  = names[uint32]("O")
	)
	for i, frame := range frames {
		message, err := d.Decode(frame)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		switch m := message.(type) {
		case *pgoutput.Begin:
			fmt.Fprintf(&out, "begin %s xid %s at %s\n", lsns(m.FinalLSN), xids(m.XID), times(m.CommitTime))
		case *pgoutput.Commit:
			fmt.Fprintf(&out, "commit %s end %s at %s\n", lsns(m.CommitLSN), lsns(m.EndLSN), times(m.CommitTime))
		case *pgoutput.Relation:
			fmt.Fprintf(&out, "relation %s %s.%s identity %c\n", oids(m.ID), m.Namespace, m.Name, m.ReplicaIdentity)
			for _, c := range m.Columns {
				typ := fmt.Sprint(c.Type)
				if c.Type >= 16384 { // FirstNormalObjectId: made by a user, so the number is by chance
					typ = oids(c.Type)
				}
				fmt.Fprintf(&out, "  column %s type %s modifier %d key %t\n", c.Name, typ, c.Modifier, c.Key)
			}
		case *pgoutput.Insert:
			fmt.Fprintf(&out, "insert %s.%s", m.Relation.Namespace, m.Relation.Name)
			for j, value := range m.Values {
				if value == nil {
					fmt.Fprintf(&out, " %s=NULL", m.Relation.Columns[j].Name)
				} else {
					fmt.Fprintf(&out, " %s=%q", m.Relation.Columns[j].Name, value)
				}
			}
			out.WriteByte('\n')
		case *pgoutput.Update:
			fmt.Fprintf(&out, "update %s.%s\n", m.Relation.Namespace, m.Relation.Name)
		case *pgoutput.Delete:
			fmt.Fprintf(&out, "delete %s.%s\n", m.Relation.Namespace, m.Relation.Name)
		case *pgoutput.Truncate:
			out.WriteString("truncate\n")
		case *pgoutput.Type:
			fmt.Fprintf(&out, "type %s\n", oids(m.ID))
		case *pgoutput.Origin:
			fmt.Fprintf(&out, "origin %q %s\n", m.Name, m.LSN)
		case *pgoutput.LogicalMessage:
			fmt.Fprintf(&out, "message transactional %t prefix %q content %q\n", m.Transactional, m.Prefix, m.Content)
		default:
			t.Fatalf("frame %d: unexpected %T", i, message)
		}
	}
	return out.String()
}

// names returns a function that gives each different value the next name.
func names[T comparable](letter string) func(T) string {
	known := make(map[T]string)
	return func(value T) string {
		if known[value] == "" {
			known[value] = fmt.Sprint(letter, len(known)+1)
		}
		return known[value]
	}
}
