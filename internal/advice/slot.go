package advice

import "strings"

// ours is the condition for a slot that a relay of this database can have made.
func ours(slot string) string {
	return "slot_name = " + literal(slot) + " AND slot_type = 'logical' AND plugin = 'pgoutput' AND NOT temporary AND database = current_database()"
}

// DropSlot drops a slot of this database. The server refuses while a program reads it.
func DropSlot(slot string) Statement {
	return Statement{"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE " + ours(slot)}
}

// DropLeftOverSlot drops, on a standby, a slot that it does not copy from its primary. (from Postgres 17 on)
func DropLeftOverSlot(slot string) Statement {
	return Statement{"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE " + ours(slot) + " AND NOT synced AND NOT active"}
}

// CreateSlot makes a slot. The server refuses a name that is taken.
func CreateSlot(slot string) Statement {
	return Statement{"SELECT pg_create_logical_replication_slot(" + literal(slot) + ", 'pgoutput')"}
}

// MarkForFailover lets standbys copy a slot. It is a replication command. (from Postgres 17 on)
func MarkForFailover(slot string) Statement {
	return Statement{"ALTER_REPLICATION_SLOT " + Quote(slot) + " (FAILOVER true)"}
}

// ForgetSlot drops a slot of this database and deletes what walpost has recorded of it, from the tables that are
// given, each with a column slot; or it does nothing: where the server refuses to drop the slot because a program reads
// it, the rows stay. The slot comes last, because dropping it is the part that cannot be rolled back.
func ForgetSlot(slot string, tables ...string) Statement {
	var sql strings.Builder
	for _, table := range tables {
		sql.WriteString("DELETE FROM " + table + " WHERE slot = " + literal(slot) + "; ")
	}
	sql.WriteString("PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE " + ours(slot) + ";")
	return Statement{"DO $$ BEGIN " + sql.String() + " END $$"}
}
