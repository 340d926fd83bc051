package lease

import "time"

const (
	// beat is how old the last answer may be while attempts begin: then the session is asked ahead of the heartbeat. A
	// leader that hands out nothing asks once in a heartbeat.
	beat = 100 * time.Millisecond
	// patience is how long an answer may take, in addition to twice what answers took of late, until the leader is in doubt. With
	// beat it makes a quarter of a second between the loss of the server and the last attempt.
	patience = 150 * time.Millisecond
)

// pulse knows whether the session of the lease answers. A leader that is cut off may act until its lease ends, but
// can record nothing of what it does, so that the next leader would do all of it again: while an answer is overdue it
// begins nothing. A server that is merely slow answers a question that needs no disk and no lock about as fast
// as it did before.
type pulse struct {
	asked time.Duration // when the question without an answer was sent, or the session was lost; 0 while there is none
	usual time.Duration // what answers take: the longest one, which counts for less with each that is shorter
}

// noteQuestion notes that a question is sent, or that the session is lost.
func (p *pulse) noteQuestion(now time.Duration) {
	if p.asked == 0 {
		p.asked = now
	}
}

// answer notes the answer to a question.
func (p *pulse) answer(sent, now time.Duration) {
	p.asked, p.usual = 0, max(now-sent, p.usual-p.usual/8)
}

// overdue reports whether the answer should have come by now.
func (p *pulse) overdue(now time.Duration) bool {
	return p.asked != 0 && now-p.asked >= patience+min(2*p.usual, leaseTime/3)
}
