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

func checkVersion(_ context.Context, e *exam) ([]Finding, error) {
	return judgeVersion(e.version / 10000), nil
}

func judgeVersion(major int) []Finding {
	switch {
	case major < oldestVersion:
		return []Finding{problem(fmt.Sprintf("this is Postgres %d", major), fmt.Sprintf("walpost needs %d or newer", oldestVersion),
			&Mend{Do: fmt.Sprintf("whoever runs the server upgrades it, or leads database_url and replication_url to one of Postgres %d to %d", oldestVersion, newestVersion)})}
	case major > newestVersion:
		return []Finding{warning(fmt.Sprintf("this is Postgres %d", major), fmt.Sprintf("walpost is tested up to %d", newestVersion),
			&Mend{Do: "look for a newer walpost"})}
	}
	return nil
}

func checkPrimary(_ context.Context, e *exam) ([]Finding, error) {
	if !e.recovery {
		return nil, nil
	}
	return []Finding{problem("this server is a standby", "the relay writes what it has delivered, and a standby takes no writes",
		&Mend{Do: "lead database_url and replication_url to the primary; with several hosts in them, add target_session_attrs=read-write"})}, nil
}

func checkSchema(ctx context.Context, e *exam) ([]Finding, error) {
	err := migrations.Check(ctx, e.tx, e.Migrations...)
	switch {
	case errors.Is(err, migrations.ErrBehind):
		return []Finding{problem(err.Error(), "the relay does not start with other tables than its own",
			&Mend{Do: "run walpost migrate, as a role with CREATE on the database"})}, nil
	case errors.Is(err, migrations.ErrAhead):
		return []Finding{problem(err.Error(), "a newer walpost has changed the tables",
			&Mend{Do: "run that newer walpost here, too"})}, nil
	}
	return nil, err
}

// checkReplicationConnection opens one, which shows more than facts could: pg_hba.conf, the pooler, the
// right, a free sender.
func checkReplicationConnection(ctx context.Context, e *exam) ([]Finding, error) {
	const why = "the stream is read over it, and leadership is held over it"
	conn, err := wal.Connect(ctx, e.ReplicationURL, application)
	if err != nil {
		switch f, isSetup := fromSetup(err, why); {
		case postgres.Code(err) == "42501":
			return []Finding{problem(postgres.Mask(err, e.ReplicationURL).Error(), why, &Mend{Do: "see the check rights"})}, nil
		case isSetup:
			return []Finding{f}, nil
		case postgres.Code(err) == "53300":
			return []Finding{problem(err.Error(), why, &Mend{Do: "raise max_wal_senders, or end a session of the server; see the check free-senders"})}, nil
		case postgres.Code(err) == "28000":
			return []Finding{problem(err.Error(), why, &Mend{
				Do: fmt.Sprintf("whoever runs the server lets role %q in by pg_hba.conf: a line for database %q, not one for \"replication\"", e.streaming, e.database)})}, nil
		}
		return []Finding{problem(err.Error(), why, &Mend{Do: "correct replication_url (WALPOST_REPLICATION_URL)"})}, nil
	}
	defer conn.Close()
	pooled, err := conn.Pooled(ctx)
	if err != nil {
		return nil, err
	}
	if pooled {
		return []Finding{problem("the replication connection goes through a pooler", "it may give the session that holds the leadership to somebody else",
			&Mend{Do: "set replication_url (WALPOST_REPLICATION_URL) to a direct connection; database_url may stay as it is"})}, nil
	}
	theirs, err := conn.Place(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := wal.PlaceOf(ctx, e.tx)
	if err != nil {
		return nil, err
	}
	if ours.InStandby {
		return nil, nil // the check primary says so
	}
	if err := theirs.Same(ours); err != nil {
		return []Finding{problem(err.Error(), "a slot belongs to one database of one server, and a standby takes no writes",
			&Mend{Do: "lead both to the same database of the same primary"})}, nil
	}
	return nil, nil
}

// maxSkew is how far two clocks that are kept by NTP stay together, with room to spare.
const maxSkew = 5 * time.Second

func checkClock(ctx context.Context, e *exam) ([]Finding, error) {
	before := e.Now()
	var there time.Time
	if err := e.tx.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).Scan(&there); err != nil {
		return nil, err
	}
	after := e.Now()
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
		&Mend{Do: "whoever runs the two machines lets NTP keep their clocks: chronyc tracking or timedatectl on each says which one is off"})}, nil
}
