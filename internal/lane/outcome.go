package lane

import (
	"errors"

	"github.com/backendstart/walpost/internal/subscriber"
)

// errorOf is what the error of a call of n deliveries says of delivery i.
func errorOf(err error, i, n int) error {
	if err == nil {
		return nil
	}
	var batchErr *subscriber.BatchError
	switch known := errors.As(err, &batchErr); {
	case known && n > 1:
		return batchErr.Failed[i]
	case known && batchErr.Failed[0] != nil:
		return batchErr.Failed[0]
	case n > 1:
		return wholeBatch{err}
	}
	return err
}

// wholeBatch is the error of a call of several events that does not say which of them it means.
type wholeBatch struct{ error }

func (w wholeBatch) Unwrap() error { return w.error }
