// Package slab makes small things in groups, so that an event on the fast path costs a fraction of an
// allocation. It is for code that makes many of a kind and lets go of them in nearly the same order (packages
// outbox, ack, lane). Nothing is ever used twice: the garbage collector frees a group when no one holds any
// of it.
package slab

const (
	// group is how many are made at once. It is small on purpose: one event that stays open for days keeps
	// its whole group in memory, and a window full of such events must not cost many times what it counts.
	group = 8
	// Large is from how many bytes on an event, and what belongs to it, is made alone: a neighbour that
	// stays open must not keep it in memory.
	Large = 1 << 10
	// chunk is room for a group of the largest that are made together.
	chunk = group * Large
)

// Of makes values of one type, zero as from new. The zero Of is ready. It is not safe for concurrent use.
type Of[T any] struct{ free []T }

// New returns the address of a zero T that will keep so many bytes alive.
func (s *Of[T]) New(bytes int) *T { return &s.Slice(1, bytes)[0] }

// Slice returns n zero values side by side that will keep so many bytes alive.
func (s *Of[T]) Slice(n, bytes int) []T {
	if n > group || bytes >= Large {
		return make([]T, n)
	}
	if n > len(s.free) {
		s.free = make([]T, group*max(n, 1))
	}
	slice := s.free[:n:n]
	s.free = s.free[n:]
	return slice
}

// Bytes makes byte slices, zero as from make. The zero Bytes is ready. It is not safe for concurrent use.
type Bytes struct{ free []byte }

// TakeBytes returns n bytes, with no room to append.
func (s *Bytes) TakeBytes(n int) []byte {
	if n >= Large {
		return make([]byte, n)
	}
	if n > len(s.free) {
		s.free = make([]byte, chunk)
	}
	slice := s.free[:n:n]
	s.free = s.free[n:]
	return slice
}
