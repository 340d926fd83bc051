package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
)

// Versions that the tests run on.
const oldestVersion, newestVersion = 14, 18

func checkVersion(_ context.Context, c *checker) ([]Finding, error) {
	return judgeVersion(c.version / 10000), nil
}

func judgeVersion(major int) []Finding {
	switch {
	case major < oldestVersion:
		return []Finding{problem(fmt.Sprintf("this is Postgres %d", major), fmt.Sprintf("walpost needs %d or newer", oldestVersion),
			&Fix{Do: fmt.Sprintf("upgrade the server, or point database_url and replication_url at one of Postgres %d to %d", oldestVersion, newestVersion)})}
	case major > newestVersion:
		return []Finding{warning(fmt.Sprintf("this is Postgres %d", major), fmt.Sprintf("walpost is tested up to %d", newestVersion),
			&Fix{Do: "install a newer walpost"})}
	}
	return nil
}

func checkPrimary(_ context.Context, c *checker) ([]Finding, error) {
	if !c.recovery {
		return nil, nil
	}
	return []Finding{problem("this server is a standby", "the relay writes what it has delivered, and a standby takes no writes",
		&Fix{Do: "point database_url and replication_url at the primary; with several hosts in them, add target_session_attrs=read-write"})}, nil
}

func checkSchema(ctx context.Context, c *checker) ([]Finding, error) {
	err := migrations.Check(ctx, c.tx, c.Migrations...)
	switch {
	case errors.Is(err, migrations.ErrBehind):
		return []Finding{problem(err.Error(), "the relay does not start with other tables than its own",
			&Fix{Do: "run walpost migrate, as a role with CREATE on the database"})}, nil
	case errors.Is(err, migrations.ErrAhead):
		return []Finding{problem(err.Error(), "a newer walpost has changed the tables",
			&Fix{Do: "run that newer walpost here, too"})}, nil
	}
	return nil, err
}

// checkReplicationConnection opens one, which shows more than facts could: pg_hba.conf, the pooler, the
// right, a free sender.
func checkReplicationConnection(ctx context.Context, c *checker) ([]Finding, error) {
	const why = "the stream is read over it, and leadership is held over it"
	conn, err := wal.Connect(ctx, c.ReplicationURL, application)
	if err != nil {
		switch f, isSetup := fromSetup(err, why); {
		case postgres.Code(err) == "42501":
			return []Finding{problem(postgres.Mask(err, c.ReplicationURL).Error(), why, &Fix{Do: "see the check rights"})}, nil
		case isSetup:
			return []Finding{f}, nil
		case postgres.Code(err) == "53300":
			return []Finding{problem(err.Error(), why, &Fix{Do: "raise max_wal_senders, or end a session of the server; see the check free-senders"})}, nil
		case postgres.Code(err) == "28000":
			return []Finding{problem(err.Error(), why, &Fix{
				Do: fmt.Sprintf("let role %q in by pg_hba.conf: it needs a line for database %q, not one for \"replication\"", c.streaming, c.database)})}, nil
		}
		return []Finding{problem(err.Error(), why, &Fix{Do: "correct replication_url (WALPOST_REPLICATION_URL)"})}, nil
	}
	defer conn.Close()
	pooled, err := conn.Pooled(ctx)
	if err != nil {
		return nil, err
	}
	if pooled {
		return []Finding{problem("the replication connection goes through a pooler", "it may give the session that holds the leadership to another client",
			&Fix{Do: "set replication_url (WALPOST_REPLICATION_URL) to a direct connection; database_url may stay as it is"})}, nil
	}
	theirs, err := conn.Place(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := wal.PlaceOf(ctx, c.tx)
	if err != nil {
		return nil, err
	}
	if ours.InStandby {
		return nil, nil // the check primary says so
	}
	if err := theirs.Same(ours); err != nil {
		return []Finding{problem(err.Error(), "a slot belongs to one database of one server, and a standby takes no writes",
			&Fix{Do: "point both at the same database of the same primary"})}, nil
	}
	return nil, nil
}

// maxSkew is how far two clocks that are kept by NTP stay together, with room to spare.
const maxSkew = 5 * time.Second

func checkClock(ctx context.Context, c *checker) ([]Finding, error) {
	before := c.Now()
	var there time.Time
	if err := c.tx.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).Scan(&there); err != nil {
		return nil, err
	}
	after := c.Now()
	here := before.Add(after.Sub(before) / 2)
	skew := here.Sub(there)
	if skew.Abs() <= maxSkew+after.Sub(before)/2 {
		return nil, nil
	}
	than := "ahead of"
	if skew < 0 {
		than = "behind"
	}
	return []Finding{warning(fmt.Sprintf("the clock of this machine is %v %s the server's", skew.Abs().Round(time.Second), than),
		"lag is the age of a commit by the server's clock, so it is wrong by as much; receivers check the age of signatures",
		&Fix{Do: "let NTP keep the clocks of both machines: chronyc tracking or timedatectl on each says which one is off"})}, nil
}
