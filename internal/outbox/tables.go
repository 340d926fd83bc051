package outbox

import "sync"

// Tables are the sources' tables as they were last inspected. The zero value knows none. It is safe for
// concurrent use.
type Tables struct {
	mu       sync.Mutex
	bySource map[string]*Table // replaced as a whole, never changed; guarded by mu
}

// Use replaces what is known.
func (t *Tables) Use(tables []*Table) {
	bySource := make(map[string]*Table, len(tables))
	for _, table := range tables {
		bySource[table.Source.Name] = table
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bySource = bySource
}

// BySource returns the tables by the names of their sources. The map is not to be changed.
func (t *Tables) BySource() map[string]*Table {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bySource
}
