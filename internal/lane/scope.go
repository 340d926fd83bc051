package lane

import (
	"hash/maphash"
	"slices"

	"github.com/backendstart/walpost/internal/event"
)

// scope says which events stand behind debt, because something before them is owed. All of it is guarded by
// Lane.mu.
//
// Invariant: live and owed events are never given out for one key at the same time. What is in scope is
// given out only after it was read from the debt; what stands behind debt is recorded, or released when nothing
// before it is owed any more.
type scope struct {
	mode    debtMode
	keys    map[string]int  // with debtByKey: keys in debt and how many recorded deliveries of each wait
	blocked map[string]bool // keys behind a dead letter, where the subscriber wants that
	// manyBlocked: more than maxKeys keys are. blocked has only those of the last moment, the debt is one of the whole
	// subscriber, and what is read from it leaves out such keys.
	manyBlocked bool
	// lookUp: an earlier process or a person may have recorded what the stream brings, so it is looked up first.
	lookUp    bool
	unchecked []*item // offered while lookUp
	// unread: nothing is read from the debt, because something older may come to it.
	unread bool

	behindDebt []*item // offered and in scope
	urgent     bool    // some of behindDebt stand still and must leave the window
	// before: what stands behind debt up to this position may be older than what is recorded of its key. So it is
	// recorded before anything is read.
	before event.Position

	inHand      int                // read from the debt; neither removed there nor given up here
	inHandBytes int64              // of them
	counted     map[uint64]int     // by hash of the identity: failures that count of what was given up
	paid        []*item            // of them: delivered, to be removed from the debt
	failed      map[*item]struct{} // of them: failed, to be noted there
}

func newScope() scope {
	return scope{lookUp: true, unread: true, counted: make(map[uint64]int), keys: make(map[string]int), blocked: make(map[string]bool), failed: make(map[*item]struct{})}
}

const (
	// payLimit and payBytes bound what is in memory of a debt.
	payLimit = 1000
	payBytes = 8 << 20
	// maxKeys is with how many keys in debt the subscriber counts as being in debt as a whole.
	maxKeys = 1000
)

// readLimit bounds what is counted of a debt at once. With more the subscriber counts as being in debt as a whole, until
// a count of all pages has found few keys.
var readLimit = Limit{Keys: maxKeys, Rows: 50_000}

// unknown is the count of a key of which something is recorded, but it is not known how much: it is in debt
// until a read finds nothing more.
const unknown = 1 << 30

// recordBeforeReading lets nothing be read from the debt before what stands behind it up to an event is recorded.
func (s *scope) recordBeforeReading(it *item) {
	if it.ev.Position.Compare(s.before) > 0 {
		s.before = it.ev.Position
	}
}

// mustRecordFirst reports whether something that stands behind debt has to be recorded before the debt is read.
func (s *scope) mustRecordFirst() bool {
	if s.before == (event.Position{}) {
		return false
	}
	for _, it := range s.behindDebt {
		if it.ev.Position.Compare(s.before) <= 0 {
			return true
		}
	}
	s.before = event.Position{}
	return false
}

// takeInHand and dropFromHand count what was read from the debt.
func (s *scope) takeInHand(it *item) {
	s.inHand++
	s.inHandBytes += int64(it.ev.Size())
	if len(s.counted) == 0 {
		return
	}
	if counted := s.counted[hashOf(it)]; counted > 0 {
		it.failing().counted = counted
		delete(s.counted, hashOf(it))
	}
}

// countedLimit bounds scope.counted to a few megabytes. Who finds no room starts to count again, until those
// that have room are dead letters or delivered.
const countedLimit = 100_000

// keepCount remembers the failures that count of an item that is given up.
func (s *scope) keepCount(it *item) {
	if counted := it.past().counted; counted > 0 && len(s.counted) < countedLimit {
		s.counted[hashOf(it)] = counted
	}
}

func hashOf(it *item) uint64 { return maphash.Comparable(keySeed, it.ev.Identity()) }

func (s *scope) dropFromHand(it *item) {
	s.inHand--
	s.inHandBytes -= int64(it.ev.Size())
}

// sortBehindDebt puts it in the order of the stream: what came back from a handler is older than
// what was offered meanwhile.
func (s *scope) sortBehindDebt() {
	byPosition := func(a, b *item) int { return a.ev.Position.Compare(b.ev.Position) }
	if !slices.IsSortedFunc(s.behindDebt, byPosition) {
		slices.SortStableFunc(s.behindDebt, byPosition)
	}
}

// forget notes that a delivery of a key is not recorded as waiting any more.
func (s *scope) forget(key string) {
	if n, ok := s.keys[key]; ok {
		s.keys[key] = n - 1
	}
}
