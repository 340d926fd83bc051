package pgoutput_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/pgoutput"
)

// outboxFrames are the relation of the reference service's outbox and a row of it, with a payload of 250
// bytes. (PostgreSQL manual, "Logical Replication Message Formats")
func outboxFrames() (relation, insert []byte) {
	columns := []struct{ name, value string }{
		{"id", "123456"}, {"event_id", "01K0WALP0ST000000000000000"}, {"event_type", "lesson.completed"},
		{"aggregate_type", "lesson"}, {"aggregate_id", "17"}, {"partition_key", "42"},
		{"payload", `{"text": "` + strings.Repeat("x", 238) + `"}`}, {"headers", "{}"},
		{"created_at", "2026-01-01 00:00:00.123456+00"}, {"published_at", ""}, {"attempts", "0"},
	}
	relation = append([]byte{'R', 0, 0, 0, 7}, "public\x00outbox\x00d"...)
	relation = binary.BigEndian.AppendUint16(relation, uint16(len(columns)))
	insert = binary.BigEndian.AppendUint16([]byte{'I', 0, 0, 0, 7, 'N'}, uint16(len(columns)))
	for _, c := range columns {
		relation = append(relation, "\x00"+c.name+"\x00\x00\x00\x00\x19\xff\xff\xff\xff"...)
		if c.value == "" {
			insert = append(insert, 'n')
			continue
		}
		insert = binary.BigEndian.AppendUint32(append(insert, 't'), uint32(len(c.value)))
		insert = append(insert, c.value...)
	}
	return relation, insert
}

// BenchmarkDecoder is the cost of a row; that it allocates nothing is a test of its own.
func BenchmarkDecoder(b *testing.B) {
	relation, insert := outboxFrames()
	decoder := pgoutput.NewDecoder()
	if _, err := decoder.Decode(relation); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(insert)))
	for b.Loop() {
		if _, err := decoder.Decode(insert); err != nil {
			b.Fatal(err)
		}
	}
}
