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
	// be behind: then a millisecond more does not matter to anyone.
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
	firstWait = 250 * time.Microsecond
	leastWait = 60 * time.Microsecond
	// runReads and runSpan are how many reads in a row follow the same wait. The first of them is not counted: it brings
	// what the other wait has left, and pays for a server that this has put to sleep.
	runReads = 4
	runSpan  = 2 * time.Millisecond
	// lossy is the part of what the shorter wait brings in a second that the longer one may lack.
	lossy = 0.05
	// enoughVotes is by how many comparisons more one side must have won. A server's pace varies by half within
	// milliseconds, so that a single comparison says little.
	enoughVotes = 4
	// unpacedVotes is the same, of those that go without a wait when even the least one is too long.
	unpacedVotes = 100
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
	wait            time.Duration // the longer one
	long            bool          // it is its turn
	shorter, longer tally         // the last run of each
	votes           int           // comparisons that the longer one has won more often than lost
	coarse          bool          // half the wait has taken as long, because sleeps are coarse: so the shorter one is none
	overfull        bool          // the largest buffer was not enough for what the longer one has gathered
	unpaced         int           // comparisons without a wait that are left
}

// tally is what the reads of a run have brought, how long that took, and how long of that they waited. The first read
// counts only as one.
type tally struct {
	reads       int
	bytes       int
	took, slept time.Duration
}

func (t tally) perSecond() float64 { return float64(t.bytes) / max(t.took, time.Microsecond).Seconds() }

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
	case p.coarse || p.wait/2 < leastWait:
		return 0
	}
	return p.wait / 2
}

// noteRead takes what came since the last read that left nothing behind: how much, in which time, and how much of that was a
// wait. overfull says that not even the largest buffer had room for it.
func (p *pace) noteRead(brought int, took, slept time.Duration, overfull bool) {
	run := &p.shorter
	if p.long {
		run = &p.longer
		p.overfull = p.overfull || overfull
	}
	if run.reads++; run.reads > 1 {
		run.bytes, run.took, run.slept = run.bytes+brought, run.took+took, run.slept+slept
	}
	if run.reads < runReads || run.took < runSpan {
		return
	}
	if p.long {
		p.compare()
	}
	p.long = !p.long
}

// compare takes a vote about the two waits, and changes them when the votes say so.
func (p *pace) compare() {
	won := p.longer.perSecond() >= p.shorter.perSecond()*(1-lossy) && !p.overfull
	sleepsAlike := p.wait/2 >= leastWait && p.shorter.slept*time.Duration(p.longer.reads) > p.longer.slept*time.Duration(p.shorter.reads)*3/4
	p.shorter, p.longer, p.overfull = tally{}, tally{}, false
	switch {
	case p.unpaced > 0:
		p.unpaced--
		return
	case sleepsAlike && !p.coarse:
		p.coarse = true // this comparison says nothing
		return
	case won:
		p.votes++
	default:
		p.votes--
	}
	switch p.votes {
	case enoughVotes:
		p.wait = min(p.wait+p.wait/2, backlogWait)
		p.votes, p.coarse = 0, false
	case -enoughVotes:
		if p.wait /= 2; p.wait < leastWait {
			p.wait, p.unpaced = leastWait, unpacedVotes
		}
		p.votes, p.coarse = 0, false
	}
}
