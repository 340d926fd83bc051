package kafka

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/backendstart/walpost/internal/event"
)

const (
	// stretchOf is how long a stretch of a trail is added to.
	stretchOf = 500 * time.Millisecond
	// owedInHand is above what a lane has in hand of a debt: of the deliveries sent from a debt, all but the last so many are
	// removed from it.
	owedInHand = 2000
	// owedFor is how long the removal of what was paid is waited for, where no more of a debt follows. It takes a tenth of a
	// second.
	owedFor = 10 * time.Minute
	// maxTrail is how many events may be committed and not recorded: what a successor keeps of them in memory is some 50 bytes
	// each. That many are only there while an earlier event stands still and is not owed yet.
	maxTrail = 1_000_000
	// maxProducers is how many of our last producer ids are noted. One lasts for 32,767 transactions.
	maxProducers = 8
)

// partition is one of a topic.
type partition struct {
	topic  string
	number int32
}

// trail knows from where the topics have to be read to find everything that was committed and of which Postgres may not know
// that it is delivered. That place, one for each partition, is kept at the brokers, as the offset of a group: it is noted
// before a transaction that writes to the partition commits, and follows what is recorded. A place too early costs time at the
// next start, and nothing else; so it needs no transaction, and one that is noted late by a relay that was frozen is early.
//
// Invariant: no record that is committed and of an event that may come again stands before the noted place of its partition.
type trail struct {
	mu        sync.Mutex
	stretches []*stretch          // oldest first; guarded by mu
	ends      map[partition]int64 // behind our last record; guarded by mu
	noted     map[partition]place // as the brokers have it; guarded by mu
	secured   string              // the position up to which the stream brings nothing again; guarded by mu
	finished  string              // and up to which nothing is owed either; guarded by mu
	suspect   string              // the last position in a suspect stretch; guarded by mu
	owed      int                 // deliveries sent from a debt; guarded by mu
	size      int                 // records in stretches; guarded by mu
	unread    map[partition]bool  // could not be read back: their places stay; guarded by mu
}

// stretch is what was committed in some time.
type stretch struct {
	begun time.Time
	first map[partition]int64 // our first record in each partition
	last  string              // position of the last event that came from the stream, "" without one
	owed  int                 // trail.owed after its last delivery from a debt, 0 without one
	size  int
	// suspect: found at the brokers, or reported too late. An event of it that the lane has recorded as owed, because it did
	// not know, comes again from there, however far the stream is.
	suspect bool
}

// place is where to read a partition from, and which producer ids were ours since then.
type place struct {
	at        int64
	producers []int64
}

// sent is a committed record.
type sent struct {
	partition
	offset   int64
	position string
	owed     bool // from a debt: it is recorded by being removed there
}

func newTrail() *trail {
	return &trail{ends: map[partition]int64{}, noted: map[partition]place{}, unread: map[partition]bool{}}
}

// add notes what is committed.
func (t *trail) add(all []sent, late bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.stretches)
	if n == 0 || t.stretches[n-1].suspect != late || now.Sub(t.stretches[n-1].begun) >= stretchOf {
		t.stretches = append(t.stretches, &stretch{begun: now, first: map[partition]int64{}, suspect: late})
		n++
	}
	t.addToLocked(t.stretches[n-1], all)
}

// load takes over what was found at the brokers, in all partitions but the unread.
func (t *trail) load(places map[partition]place, all []sent, unread []partition, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	loaded := &stretch{begun: now, first: map[partition]int64{}, suspect: true}
	for p, of := range places {
		t.noted[p] = of
		t.ends[p] = max(t.ends[p], of.at)
		delete(t.unread, p)
	}
	for _, p := range unread {
		t.unread[p] = true
	}
	t.stretches = append(t.stretches, loaded)
	t.addToLocked(loaded, all)
}

func (t *trail) addToLocked(s *stretch, all []sent) {
	for _, r := range all {
		if first, ok := s.first[r.partition]; !ok || r.offset < first {
			s.first[r.partition] = r.offset
		}
		t.ends[r.partition] = max(t.ends[r.partition], r.offset+1)
		if r.owed {
			t.owed++
			s.owed = t.owed
		} else {
			s.last = max(s.last, r.position)
		}
		if s.suspect {
			t.suspect = max(t.suspect, r.position)
		}
	}
	s.size += len(all)
	t.size += len(all)
}

// full tells whether more is committed and not recorded than a successor should have to keep.
func (t *trail) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size >= maxTrail
}

// advance notes that the stream brings nothing again up to a position, and that up to another nothing is owed either.
func (t *trail) advance(secured, finished event.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secured, t.finished = secured.String(), finished.String()
}

// unreadPlace is the place of a partition that could not be read back.
func (t *trail) unreadPlace(p partition) (place, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.noted[p], t.unread[p]
}

// forget drops the oldest stretches, as long as everything in them is recorded.
func (t *trail) forget(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.stretches) > 0 && t.recordedLocked(t.stretches[0], now) {
		t.size -= t.stretches[0].size
		t.stretches = t.stretches[1:]
	}
}

// recordedLocked tells whether nothing of a stretch comes again. What is suspect and owed may wait for days, and to read back
// so much is more than it is worth: then the brokers' places go on after owedFor, and this session alone still knows it.
func (t *trail) recordedLocked(s *stretch, now time.Time) bool {
	old := now.Sub(s.begun) >= owedFor
	switch {
	case s.last > t.secured:
		return false
	case s.suspect && s.last > t.finished:
		return old
	}
	return s.owed == 0 || t.owed-s.owed >= owedInHand || old
}

// resolved tells that nothing suspect comes again.
func (t *trail) resolved() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.suspect <= t.finished && !slices.ContainsFunc(t.stretches, func(s *stretch) bool { return s.suspect })
}

// unnoted are the places to be noted before a transaction with these records commits.
func (t *trail) unnoted(all []sent, producer int64) map[partition]place {
	t.mu.Lock()
	defer t.mu.Unlock()
	places := map[partition]place{}
	for _, r := range all {
		known, ok := t.noted[r.partition]
		if ok && slices.Contains(known.producers, producer) {
			continue
		}
		if !ok {
			known.at = r.offset
			if here, again := places[r.partition]; again {
				known.at = min(here.at, r.offset)
			}
		}
		known.producers = append(slices.Clone(known.producers), producer)
		places[r.partition] = place{known.at, known.producers[max(0, len(known.producers)-maxProducers):]}
	}
	return places
}

// behind are the places that are noted too early by now.
func (t *trail) behind() map[partition]place {
	t.mu.Lock()
	defer t.mu.Unlock()
	places := map[partition]place{}
	for p, known := range t.noted {
		if t.unread[p] {
			continue
		}
		at := t.ends[p]
		for _, s := range t.stretches {
			if first, ok := s.first[p]; ok {
				at = min(at, first)
			}
		}
		if at > known.at {
			places[p] = place{at, known.producers}
		}
	}
	return places
}

// notePlaces notes what the brokers have.
func (t *trail) notePlaces(places map[partition]place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.noted, places)
}

// offsetOf writes a place as the brokers keep it.
func (p partition) offsetOf(of place) kadm.Offset {
	var producers []string
	for _, id := range of.producers {
		producers = append(producers, strconv.FormatInt(id, 10))
	}
	return kadm.Offset{Topic: p.topic, Partition: p.number, At: of.at, LeaderEpoch: -1, Metadata: "producers " + strings.Join(producers, ",")}
}

// placeOf reads what offsetOf writes. What someone else has written names no producer, and nothing is found there.
func placeOf(o kadm.Offset) place {
	of := place{at: o.At}
	if list, ok := strings.CutPrefix(o.Metadata, "producers "); ok {
		for text := range strings.SplitSeq(list, ",") {
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				of.producers = append(of.producers, id)
			}
		}
	}
	return of
}
