package lane

// debtMode is how much of a subscriber is in debt. What is in debt is recorded, and given out only after it was read
// from there. docs/ARCHITECTURE.md draws the transitions.
type debtMode int

const (
	debtByKey  debtMode = iota // scope.keys are in debt, often none; the other keys are live
	debtOfAll                  // the subscriber as a whole
	debtPaused                 // the same, and it is paused: nothing is read from the debt, and no one is called
)

func (m debtMode) String() string { return [...]string{"by key", "of all", "paused"}[m] }

// whole reports whether all events of the subscriber go to the debt.
func (m debtMode) whole() bool { return m != debtByKey }

// oweAll puts the subscriber as a whole in debt.
func (m *debtMode) oweAll() {
	if *m == debtByKey {
		*m = debtOfAll
	}
}

// pause is what a person asked for, or the subscriber itself.
func (m *debtMode) pause() { *m = debtPaused }

// resume ends a pause: what was recorded meanwhile is paid first.
func (m *debtMode) resume() {
	if *m == debtPaused {
		*m = debtOfAll
	}
}

// narrow leaves only those keys in debt of which something waits. A paused subscriber stays paused.
func (m *debtMode) narrow() {
	if *m == debtOfAll {
		*m = debtByKey
	}
}
