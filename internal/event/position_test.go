package event_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
)

func TestLSN_readsAndWritesAsPostgresDoes(t *testing.T) {
	for text, want := range map[string]event.LSN{
		"0/0":               0,
		"0/16B3748":         0x16B3748,
		"16/B374D848":       0x16_B374D848,
		"FFFFFFFF/FFFFFFFF": 1<<64 - 1,
	} {
		got, err := event.ParseLSN(text)
		if err != nil || got != want {
			t.Errorf("ParseLSN(%q): got %d, %v, want %d", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("LSN(%d): got %q, want %q", want, got, text)
		}
	}
}

func TestParseLSN_namesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{"", "0", "/", "0/", "/0", "0/G", "-1/0", "0/-1", "100000000/0", "0/100000000", "0/0/0", " 0/0", "0x1/0"} {
		got, err := event.ParseLSN(text)
		if err == nil {
			t.Errorf("ParseLSN(%q): got %v, want an error", text, got)
		} else if !strings.Contains(err.Error(), `"`+text+`"`) {
			t.Errorf("ParseLSN(%q): error %q does not name it", text, err)
		}
	}
}

func TestPosition_comparesAsItsTransactionsCommitted(t *testing.T) {
	inOrder := []event.Position{
		{},
		{Ordinal: 1},
		{Commit: 7, Ordinal: 1 << 20}, // read from the table of a slot that starts at 8
		{Commit: 8, Ordinal: -1},      // everything before a transaction is done, nothing of it
		{Commit: 8},
		{Commit: 8, Ordinal: 1},
		{Commit: 8, Ordinal: 9},
		{Commit: 8, Ordinal: 10},
		{Commit: 16},
		{Commit: 1 << 40},
		{Epoch: 1},
		{Epoch: 1, Commit: 8},
		{Epoch: 10},
	}
	for i, p := range inOrder {
		for j, q := range inOrder {
			want := sign(i - j)
			if got := p.Compare(q); got != want {
				t.Errorf("%+v compared with %+v: got %d, want %d", p, q, got, want)
			}
			if got := strings.Compare(p.String(), q.String()); got != want {
				t.Errorf("%q compared with %q: got %d, want %d", p, q, got, want)
			}
		}
	}
}

func TestPosition_sortsTheSameByValueAndByText(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	positions := make([]event.Position, 1000)
	for i := range positions {
		positions[i] = event.Position{
			Epoch:   random.Int32N(3),
			Commit:  event.LSN(random.Uint64() >> random.UintN(64)),
			Ordinal: random.Int64N(1 << 32),
		}
	}
	byText := slices.Clone(positions)
	slices.SortFunc(positions, event.Position.Compare)
	slices.SortFunc(byText, func(p, q event.Position) int { return strings.Compare(p.String(), q.String()) })
	if !slices.Equal(positions, byText) {
		t.Errorf("seed %d: the order by text differs from the order by value", seed)
	}
}

func sign(n int) int { return max(-1, min(n, 1)) }

func TestPosition_isWrittenWithFixedWidth(t *testing.T) {
	for want, p := range map[string]event.Position{
		"00000000-0000000000000000-00000000": {},
		"00000001-00000016b374d848-0000000a": {Epoch: 1, Commit: 0x16_B374D848, Ordinal: 10},
		"7fffffff-ffffffffffffffff-ffffffff": {Epoch: 1<<31 - 1, Commit: 1<<64 - 1, Ordinal: 1<<32 - 1},
		"00000000-0000000000000007-ffffffff": {Commit: 8, Ordinal: -1},
	} {
		if got := p.String(); got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
}
