package debt

// These let tests look at plans.
var (
	WaitingSQL      = waitingSQL
	RemovePassedSQL = removePassed
)
