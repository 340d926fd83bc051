package relay

import (
	"errors"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
)

// changed is why what is in memory does not fit the slot or the database any more. Then it yields: the rooms
// end what is in a handler, and are built again from what the database says.
type changed struct {
	reason string
	// unreadable: the slot is there and does not bring any more what it should, so it has to be replaced.
	unreadable bool
	// writersEnded: the transactions that a second pass has to wait for have ended.
	writersEnded bool
}

func (c *changed) Error() string { return c.reason }

// Is lets lanes know it as a reason to hand nothing more over.
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

// errChangedMeanwhile means that what was found is not so any more. The next attempt finds what is.
var errChangedMeanwhile = errors.New("something has changed meanwhile")
