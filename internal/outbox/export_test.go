package outbox

// PathIDCondition is how rows are looked up by an event id at the end of a path.
func PathIDCondition(t *Table) string { return t.pathIDCondition() }
