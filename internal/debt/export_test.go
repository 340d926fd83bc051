package debt

// WaitingSQL lets a test look at its plan.
const WaitingSQL = waitingSQL
