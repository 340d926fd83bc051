package wal

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

// Place is where a connection leads: a slot belongs to one database of one server, so all connections of a relay
// must lead to the same.
type Place struct {
	System    string // of the server and all that were copied from it
	Timeline  int32  // 0 on a standby
	Database  string
	Version   int // major
	InStandby bool
}

// ErrElsewhere means that replication_url leads somewhere else than database_url. In a failover that passes; else
// a person has to correct one of them.
var ErrElsewhere = errors.New("replication_url and database_url lead to different places")

// placeSQL asks any session of the server. The control file shows the old timeline right after a promotion, the name
// of the WAL file that is written does not.
const placeSQL = `SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) END,
	pg_catalog.current_database()::text, (pg_catalog.current_setting('server_version_num')::int / 10000)::text, pg_catalog.pg_is_in_recovery()::text`

func placeOf(texts [5]string) (p Place, err error) {
	p = Place{System: texts[0], Database: texts[2], InStandby: texts[4] == "true"}
	if texts[1] != "" {
		timeline, err := strconv.ParseInt(texts[1], 16, 32)
		if err != nil {
			return Place{}, fmt.Errorf("timeline %q: %w", texts[1], err)
		}
		p.Timeline = int32(timeline)
	}
	p.Version, err = strconv.Atoi(texts[3])
	return p, err
}

// PlaceOf asks where a session of SQL leads.
func PlaceOf(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (Place, error) {
	var texts [5]string
	err := q.QueryRow(ctx, placeSQL).Scan(&texts[0], &texts[1], &texts[2], &texts[3], &texts[4])
	if err != nil {
		return Place{}, fmt.Errorf("ask which server this is: %w", err)
	}
	return placeOf(texts)
}

// Place asks where the connection leads. It is for a connection that does not stream yet.
func (c *Conn) Place(ctx context.Context) (Place, error) {
	results, err := c.pg.Exec(ctx, placeSQL).ReadAll()
	if err != nil {
		return Place{}, fmt.Errorf("ask which server this is: %w", postgres.Mask(err, c.dsn))
	}
	var texts [5]string
	for i, value := range results[0].Rows[0] {
		texts[i] = string(value)
	}
	return placeOf(texts)
}

// Same compares the place of a replication connection, or of the lease, with that of database_url. What differs is an
// ErrElsewhere that says what to do.
func (p Place) Same(database Place) error {
	switch {
	case p == database && !p.InStandby:
		return nil
	case database.InStandby:
		return ErrStandby
	case p.System != database.System:
		return fmt.Errorf("%w: replication_url to Postgres %d with system id %s, database_url to Postgres %d with system id %s; lead both to the same server",
			ErrElsewhere, p.Version, p.System, database.Version, database.System)
	case p.InStandby:
		return fmt.Errorf("%w: replication_url to a standby, database_url to its primary; lead both to the primary (where replication_url has several hosts, add target_session_attrs=read-write)",
			ErrElsewhere)
	case p.Database != database.Database:
		return fmt.Errorf("%w: replication_url to database %q, database_url to %q; a slot belongs to one database: lead both to the same",
			ErrElsewhere, p.Database, database.Database)
	case p.Timeline != database.Timeline:
		return fmt.Errorf("%w: replication_url to timeline %d, database_url to timeline %d of the same server; the lower one is that of a primary that was replaced: lead both to the new one",
			ErrElsewhere, p.Timeline, database.Timeline)
	}
	return fmt.Errorf("%w: replication_url to Postgres %d, database_url to Postgres %d; lead both to the same server", ErrElsewhere, p.Version, database.Version)
}
