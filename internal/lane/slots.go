package lane

// maxLost bounds the goroutines of calls that never return; with so many of them the lane starts no further call until
// one does.
const maxLost = 64

// slots are the places for calls under way: Options.Concurrency of them. All of it is guarded by Lane.mu.
type slots struct {
	taken   int
	retries int // of them: calls of keys that fail
	lost    int // calls that do not return, whose slots were given to others
}

// slot is what a call has of the slots.
type slot struct {
	retry bool // of keys that fail
	lost  bool // it was given to others
}

// free reports whether a call may begin when so many may be under way.
func (s *slots) free(concurrency int) bool { return s.taken < concurrency && s.lost < maxLost }

// occupy gives a call its slot.
func (s *slots) occupy(of *slot) {
	s.taken++
	if of.retry {
		s.retries++
	}
}

// lose gives the slot of a call that does not return to others.
func (s *slots) lose(of *slot) {
	s.release(of)
	of.lost = true
	s.lost++
}

// release ends a call that has returned.
func (s *slots) release(of *slot) {
	if of.lost {
		s.lost--
		return
	}
	s.taken--
	if of.retry {
		s.retries--
	}
}
