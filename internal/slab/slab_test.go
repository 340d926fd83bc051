package slab_test

import (
	"testing"

	"github.com/backendstart/walpost/internal/slab"
)

func TestOf_givesZeroValuesThatAreApart(t *testing.T) {
	var s slab.Of[int]
	seen := make(map[*int]bool)
	for range 100 {
		p := s.New(10)
		if *p != 0 || seen[p] {
			t.Fatalf("got %d at an address that was given before: %v", *p, seen[p])
		}
		*p, seen[p] = 1, true
	}
	if slice := s.Slice(3, 10); len(slice) != 3 || cap(slice) != 3 {
		t.Errorf("a slice of %d values with room for %d, want 3", len(slice), cap(slice))
	}
}

func TestBytes_giveRoomThatIsApart(t *testing.T) {
	var b slab.Bytes
	for _, n := range []int{0, 1, slab.Large - 1, slab.Large, 1 << 20} {
		got := b.TakeBytes(n)
		if len(got) != n || cap(got) != n {
			t.Errorf("Take(%d) has %d bytes and room for %d", n, len(got), cap(got))
		}
	}
}

func TestSlabs_costAFractionOfAnAllocation(t *testing.T) {
	var s slab.Of[[64]byte]
	var b slab.Bytes
	allocations := testing.AllocsPerRun(1000, func() {
		_ = s.New(100)
		_ = b.TakeBytes(100)
	})
	if allocations > 0.5 {
		t.Errorf("%v allocations a pair, want at most 0.5", allocations)
	}
}
