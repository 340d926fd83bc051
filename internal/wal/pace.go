package wal

import "time"

const (
	// backlogWait is how long the server may fill the socket before the next read, at most, while there is a backlog.
	backlogWait = 2 * time.Millisecond
	// busyWait is backlogWait while the stream keeps up, but brings a message every busyEvery or more: some
	// three thousand small transactions a second. It is measured over busySpan.
	busyWait  = time.Millisecond
	busyEvery = 100 * time.Microsecond
	busySpan  = 10 * time.Millisecond
	// behind is how old a transaction is, by the server's clock, when its rows are sent, for the stream to
	// be behind: then a millisecond more does not matter to anybody.
	behind = 20 * time.Millisecond
)

// traffic tells how urgent a read is by what the stream has brought.
type traffic struct {
	behind  bool // the rows that come are of transactions that are old
	busy    bool // messages come one upon the other
	count   int  // of messages since counted
	counted time.Time
}

// judge counts messages after each read.
func (t *traffic) judge(now time.Time) {
	if span := now.Sub(t.counted); span >= busySpan {
		t.busy = time.Duration(t.count)*busyEvery >= span
		t.counted, t.count = now, 0
	}
}

// longestWait is how long the next read may wait for more to gather.
//
// The server sends every message by itself. A reader that takes each as it comes is woken once per row, and so are the
// kernel and the server; one that lets a millisecond of them gather is woken a thousand times a second at most, which
// leaves the cores to those who produce and handle events.
func (t *traffic) longestWait() time.Duration {
	switch {
	case t.behind:
		return backlogWait
	case t.busy:
		return busyWait
	}
	return 0
}

const (
	// firstWait is where pace begins, leastWait where it rather does not wait at all: a sleep is hardly finer.
	firstWait = 400 * time.Microsecond
	leastWait = 60 * time.Microsecond
	// runReads and runSpan are how many reads in a row follow the same wait. The first of them is not counted: it brings
	// what the other wait has left, and pays for a server that this has put to sleep.
	runReads = 4
	runSpan  = 2 * time.Millisecond
	// roundReads and roundSpan are how much is compared, of each of the two waits.
	roundReads = 6
	roundSpan  = 5 * time.Millisecond
	// lossy is the part of what the shorter wait brings in a second that the longer one may lack, and lossless the part
	// up to which nothing is lost.
	lossy, lossless = 0.08, 0.03
	// unpacedRounds is how many rounds go without a wait, when even the least one is too long, until it is tried again.
	unpacedRounds = 20
)

// pace finds out how long the reader may wait before a read. Waiting saves work and costs nothing, as long as the server
// goes on writing meanwhile. But it must never last until the socket is full, because then the server stands still: a Unix
// socket holds a few hundred small messages, and a buffer one or two large ones.
//
// No one can ask a socket what it holds. So pace waits by turns for a time and for half of it, and compares what either
// brings in a second, waiting and reading together. As long as the longer one brings as much, the server has not stood
// still, and both get longer; if it brings less, they get shorter. A reader that cannot keep up brings less with any
// wait, and ends up with none.
type pace struct {
	wait     time.Duration // the longer one
	bare     bool          // the shorter one is none: half of it takes as long, because sleeps are coarse or reads slow
	long     bool          // it is its turn
	run      tally         // of its turn
	shorter  tally
	longer   tally
	overfull bool // the largest buffer was not enough for what a wait had gathered
	unpaced  int  // rounds without a wait that are left
}

// tally is what the reads after one of the waits have brought in a round.
type tally struct {
	reads int
	bytes int
	took  time.Duration
}

func (t *tally) add(bytes int, took time.Duration) {
	t.reads, t.bytes, t.took = t.reads+1, t.bytes+bytes, t.took+took
}

func (t tally) perSecond() float64 { return float64(t.bytes) / max(t.took, time.Microsecond).Seconds() }

func (t tally) perRead() time.Duration { return t.took / time.Duration(t.reads) }

func (t tally) enough() bool { return t.reads >= roundReads && t.took >= roundSpan }

// next returns how long to wait before the next read, longest at most.
func (p *pace) next(longest time.Duration) time.Duration {
	if longest == 0 {
		return 0
	}
	if p.wait == 0 {
		p.wait = firstWait
	}
	p.wait = min(p.wait, longest)
	switch {
	case p.unpaced > 0:
		return 0
	case p.long:
		return p.wait
	case p.bare || p.wait/2 < leastWait:
		return 0
	}
	return p.wait / 2
}

// note takes what came since the last read that left nothing behind, and how long ago that was. overfull says that not even
// the largest buffer had room for it.
func (p *pace) note(brought int, took time.Duration, overfull bool) {
	p.overfull = p.overfull || overfull
	p.run.add(brought, took)
	switch {
	case p.run.reads == 1:
	case p.long:
		p.longer.add(brought, took)
	default:
		p.shorter.add(brought, took)
	}
	if p.run.reads >= runReads && p.run.took >= runSpan {
		p.run, p.long = tally{}, !p.long
	}
	if p.shorter.enough() && p.longer.enough() {
		p.endRound()
	}
}

// endRound changes the waits by what the round has brought.
func (p *pace) endRound() {
	share := p.longer.perSecond() / max(p.shorter.perSecond(), 1)
	switch {
	case p.unpaced > 0:
		p.unpaced--
	case p.overfull || share < 1-lossy:
		if p.wait /= 2; p.wait < leastWait {
			p.wait, p.unpaced = leastWait, unpacedRounds
		}
	case share > 1-lossless:
		p.wait += p.wait / 2
	}
	p.bare = p.shorter.perRead() > p.longer.perRead()*4/5 || p.bare && p.wait < backlogWait
	p.shorter, p.longer, p.overfull = tally{}, tally{}, false
}
