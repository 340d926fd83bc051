package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

const (
	// roundPause keeps rounds apart, so that each finds a batch.
	roundPause = 10 * time.Millisecond
	// debtTick is how often the reader works while something is owed, refreshInterval how often it asks for changes
	// otherwise.
	debtTick        = 100 * time.Millisecond
	refreshInterval = 2 * time.Second
	// recordBatch is how many events one transaction records at most.
	recordBatch = 5000
	// passInterval is the least time between two passes over a debt that has keys which fail, countInterval
	// that between two counts of it.
	passInterval  = time.Second
	countInterval = 2 * time.Second
	// examineRows bounds what one read of the debt passes over: a tenth of a second of the server, between which there
	// is time for the rest of a round.
	examineRows = 20_000
	// roundLimit bounds a round: a network that swallows everything must be noticed before TCP gives up.
	roundLimit = time.Minute
	// closeTimeout is how long after its drain a lane may go on to write: less than the relay has, which records
	// afterwards what the lanes have finished.
	closeTimeout = 2500 * time.Millisecond
)

// debtReader records and pays a lane's debt. One goroutine does all of its I/O, so that recording, reading,
// removing and looking cannot overtake each other.
type debtReader struct {
	l *Lane

	waiting bool  // something may be waiting in the debt
	change  int64 // by people, as far as the scope knows it
	pass    pass
	lookUps lookUps

	refreshedAt time.Time
	pressed     time.Time // since when the others wait for this lane, zero while they do not
	sampledAt   time.Time // when a sample was last read
	count       count
	warned      time.Time
}

// lookUps are what has to be looked up in the debt, or read later from it, because an earlier process or a person may
// have recorded what the stream brings.
type lookUps struct {
	open      bool                 // what is open may have been added to the debt
	until     event.LSN            // what the stream brings, until it has passed this
	marksOnly bool                 // nothing of that can be recorded as owed, but its row may be marked
	keys      map[string]event.LSN // these are not read before the stream has passed a position
}

func newDebtReader(l *Lane) *debtReader {
	return &debtReader{l: l, pass: pass{unread: true, allDue: true, without: make(map[string]bool)}, lookUps: lookUps{keys: make(map[string]event.LSN)}}
}

// readAgain reads from the oldest on: something may wait behind the cursor.
func (d *debtReader) readAgain() { d.pass.again, d.waiting = true, true }

// reportError shows an error of the debt in log, metrics and statistics, and its end.
func (d *debtReader) reportError(err error) {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.stats.DebtError = ""
		return
	}
	l.stats.DebtError = err.Error()
	l.metrics.debtErrors.Inc()
	if now := time.Now(); now.Sub(d.warned) >= warnEvery {
		d.warned = now
		l.log.Warn("cannot keep the books of the debt, will try again; nothing is lost meanwhile", "err", err)
	}
}
