package ack

// Both lists are linked through their elements: an end anywhere in them costs the same, and what has ended
// leaves nothing behind.

func (t *Tracker) pushLocked(of transaction) *transaction {
	x := t.spare
	if x == nil {
		x = new(transaction)
	} else {
		t.spare = x.newer
	}
	*x = of
	x.older = t.newest
	if t.newest == nil {
		t.oldest = x
	} else {
		t.newest.newer = x
	}
	t.newest = x
	return x
}

func (t *Tracker) removeLocked(x *transaction) {
	if x.older == nil {
		t.oldest = x.newer
	} else {
		x.older.newer = x.newer
	}
	if x.newer == nil {
		t.newest = x.older
	} else {
		x.newer.older = x.older
	}
	// No one points to one that is complete: each of its entries has let go of it.
	x.newer, t.spare = t.spare, x
}

func (s *sub) push(d *Delivery) {
	d.older = s.newest
	if s.newest == nil {
		s.oldest = d
	} else {
		s.newest.newer = d
	}
	s.newest = d
	s.open++
	s.bytes += int64(d.Event.Size())
}

func (s *sub) remove(d *Delivery) {
	if d.older == nil {
		s.oldest = d.newer
	} else {
		d.older.newer = d.newer
	}
	if d.newer == nil {
		s.newest = d.older
	} else {
		d.newer.older = d.older
	}
	d.older, d.newer = nil, nil
	s.open--
	s.bytes -= int64(d.Event.Size())
}
