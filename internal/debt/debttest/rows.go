package debttest

// Counter is a database that a test asks, testdb.DB for example.
type Counter interface {
	Int(sql string, args ...any) int64
}

// Rows counts the rows of walpost.owed, paid ones that are still to be marked included.
func Rows(db Counter) int64 { return db.Int(`SELECT count(*) FROM walpost.owed`) }

// Unpaid counts what is owed, waiting or dead.
func Unpaid(db Counter) int64 {
	return db.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`)
}

// Waiting counts the deliveries that are sent by themselves.
func Waiting(db Counter) int64 {
	return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting'`)
}

// Dead counts the dead letters.
func Dead(db Counter) int64 {
	return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`)
}
