package debt

// These let tests look at plans.
var (
	BlockedSQL      = blockedSQL
	LoadSQL         = loadSQL
	WaitingSQL      = waitingSQL
	RemovePassedSQL = removePassed
)
