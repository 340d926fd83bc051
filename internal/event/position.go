package event

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// LSN is a byte position in the write-ahead log of one server.
// (PostgreSQL manual, "pg_lsn Type")
type LSN uint64

// String writes the LSN as Postgres does: "16/B374D848".
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// MarshalText makes logs and JSON show what String does.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLSN(string(text))
	return err
}

// ParseLSN reads what String writes.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("LSN %q: no slash", s)
	}
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// Position is where an event stands: the only thing that is ever compared.
//
// The commit LSN is the one of the Begin message, the start of the commit record. Transactions arrive
// in the order of their commit LSNs, but rows keep the LSN at which they were written, so the LSN of a
// row orders nothing, and rows of one multi-insert even share it.
type Position struct {
	// Epoch grows when the server becomes another one (its system identifier changes).
	Epoch int32
	// Commit is the LSN of the transaction's commit record. Events that were read from the table have
	// the slot's starting point minus one: no real commit LSN has that value, they are 8-aligned.
	Commit LSN
	// Ordinal counts every insert and transactional message of the transaction from 0, wanted or not. -1 is
	// no event's: it stands before the first, where everything up to the transaction is done.
	Ordinal int64
}

// Compare orders positions as their transactions committed.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Commit, q.Commit), cmp.Compare(p.Ordinal, q.Ordinal))
}

// LastOf is the position that the event's transaction cannot pass: a subscriber, or the stream, that is past it
// is past the event, whether its Position is real or made up.
func (e *Event) LastOf() Position {
	if e.Bound == 0 {
		return e.Position
	}
	return Position{Epoch: e.Position.Epoch, Commit: e.Bound}
}

// String writes a position with fixed width, so that comparing the strings compares the positions.
func (p Position) String() string { return string(p.Append(make([]byte, 0, 34))) }

// Append appends what String returns.
func (p Position) Append(to []byte) []byte {
	if p.Ordinal < 0 && p.Commit > 0 { // as the last place before the transaction, where no event stands either
		p.Commit, p.Ordinal = p.Commit-1, math.MaxUint32
	}
	to = append(appendHex(to, uint64(uint32(p.Epoch)), 8), '-')
	to = append(appendHex(to, uint64(p.Commit), 16), '-')
	return appendHex(to, uint64(p.Ordinal), 8)
}

// appendHex appends n with at least width digits.
func appendHex(to []byte, n uint64, width int) []byte {
	for ; width > 1 && n>>(4*(width-1)) == 0; width-- {
		to = append(to, '0')
	}
	return strconv.AppendUint(to, n, 16)
}
