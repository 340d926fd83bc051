package advice

// SetForServer changes a setting of the whole server, for a setting that has no narrower place.
func SetForServer(name, value string) Statement {
	return Statement{"ALTER SYSTEM SET " + name + " = " + literal(value)}
}

// Reload lets the server read its configuration again.
func Reload() Statement { return Statement{"SELECT pg_reload_conf()"} }

// SetForRole changes a setting for the sessions of one role in one database. It wins over the configuration, over the
// database and over all roles, and changes nothing for anyone else.
func SetForRole(name, value, role, database string) Statement {
	return Statement{"ALTER ROLE " + Quote(role) + " IN DATABASE " + Quote(database) + " SET " + name + " = " + literal(value)}
}
