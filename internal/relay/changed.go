package relay

import (
	"errors"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
)

// changed is why memory is thrown away while the process goes on: the parts finish what is in a handler, and are built
// again from what the database says.
type changed struct {
	kind   changeKind
	reason string
}

// changeKind tells what a change means for the next session.
type changeKind int

const (
	misfit       changeKind = iota // memory no longer fits the slot or the database
	unreadable                     // the slot exists, but its stream cannot be read any more: it must be replaced
	writersEnded                   // every transaction that the second pass waits for has ended
	safeModeOver                   // what can have been in hand when the process crashed is handed over
)

func (c *changed) Error() string { return c.reason }

// Is makes a change a lane.ErrYield: lanes stop handing over.
func (c *changed) Is(target error) bool { return target == lane.ErrYield }

func asChanged(err error) *changed {
	var c *changed
	switch {
	case errors.As(err, &c):
		return c
	case errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrFenced):
		return &changed{reason: err.Error()}
	}
	return nil
}

// errChangedMeanwhile means that something changed between looking and acting. The next attempt looks again.
var errChangedMeanwhile = errors.New("something has changed meanwhile")
