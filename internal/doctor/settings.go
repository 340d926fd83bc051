package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// setting is a row of pg_settings.
// (PostgreSQL manual, "pg_settings": setting is in the unit of the parameter, source says who set it)
type setting struct {
	name, value, source string
	restart             bool // it changes only with a restart
	pending             bool // it was changed, and waits for that restart
	ofRole              bool // a role can have it
}

// setting returns nil where the server's version does not know it.
func (c *checker) setting(ctx context.Context, name string) (*setting, error) {
	s := setting{name: name}
	err := c.tx.QueryRow(ctx, `SELECT setting, source, context = 'postmaster', pending_restart, context IN ('user', 'superuser') FROM pg_catalog.pg_settings WHERE name = $1`, name).
		Scan(&s.value, &s.source, &s.restart, &s.pending, &s.ofRole)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read setting %s: %w", name, err)
	}
	return &s, nil
}

func (s *setting) number() int64 {
	n, _ := strconv.ParseInt(s.value, 10, 64) // the server's integers are integers
	return n
}

// superuser is who changes a setting.
const superuser = "a superuser; at a managed service, in its parameters"

// set changes a setting. One that a role can have is set for the relay's role in this database: that wins over the
// configuration, the command line, the database and all roles, and changes nothing for other programs. Any other is a
// matter of the whole server.
// (PostgreSQL manual, "pg_settings"; the words of source are those of GucSource_Names in its guc_tables.c)
func (c *checker) set(s *setting, value string) *Fix {
	switch {
	case s.source == "client" || s.source == "session": // a pooler sends what it is to set as the one, or as a SET
		return &Fix{Do: fmt.Sprintf("database_url (WALPOST_DATABASE_URL), PGOPTIONS or the connect settings of a pooler in between (connect_query of PgBouncer) set %s for the sessions of walpost, which wins over everything: take it out there", s.name)}
	case s.ofRole:
		return &Fix{As: superuser, SQL: []advice.Statement{advice.SetForRole(s.name, value, c.role, c.database)}}
	case s.source == "command line":
		return &Fix{Restart: true, Do: fmt.Sprintf("the server is started with %s on its command line, which wins over its configuration: change it there to %s", s.name, value)}
	}
	if s.pending {
		return &Fix{Restart: true, Do: "the new value waits for the restart, if it is the right one: " + value}
	}
	fix := &Fix{As: superuser, SQL: []advice.Statement{advice.SetForServer(s.name, value)}, Restart: s.restart}
	if !s.restart {
		fix.SQL = append(fix.SQL, advice.Reload())
	}
	return fix
}

func checkWALLevel(ctx context.Context, c *checker) ([]Finding, error) {
	level, err := c.setting(ctx, "wal_level")
	if err != nil || level.value == "logical" {
		return nil, err
	}
	fix := c.set(level, "logical")
	if fix.SQL != nil {
		fix.Do = "at RDS and Aurora the parameter is rds.logical_replication = 1, at Cloud SQL the flag cloudsql.logical_decoding = on"
	}
	return []Finding{problem(fmt.Sprintf("wal_level is %q, not \"logical\"", level.value), "without it the WAL does not say what a row contains, and no logical slot can be made", fix)}, nil
}

func checkFreeSlots(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slotOfName(ctx)
	if err != nil || slot != nil {
		return nil, err
	}
	most, err := c.setting(ctx, "max_replication_slots")
	if err != nil {
		return nil, err
	}
	names, err := c.texts(ctx, `SELECT slot_name::text || CASE WHEN active THEN '' ELSE ' (no reader)' END FROM pg_catalog.pg_replication_slots`)
	if err != nil || int64(len(names)) < most.number() {
		return nil, err
	}
	fix := c.set(most, strconv.FormatInt(most.number()+4, 10))
	fix.Do = joined(fix.Do, "or, without a restart, drop a slot that no program needs")
	return []Finding{problem(fmt.Sprintf("all %d replication slots of the server are in use: %s", most.number(), list(names)), "the relay cannot make its slot", fix)}, nil
}

func checkFreeSenders(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot != nil && slot.Active {
		return nil, err
	}
	most, err := c.setting(ctx, "max_wal_senders")
	if err != nil {
		return nil, err
	}
	var used int64
	err = c.tx.QueryRow(ctx, `SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE application_name <> 'walpost/doctor'`).Scan(&used)
	if err != nil || used < most.number() {
		return nil, err
	}
	fix := c.set(most, strconv.FormatInt(most.number()+4, 10))
	return []Finding{problem(fmt.Sprintf("%d of %d WAL senders of the server are in use", used, most.number()), "the relay needs one to read its slot", fix)}, nil
}

// walRate is how many bytes of WAL the server wrote per second, on average since its statistics began. Ten
// minutes are the least to distinguish a rate from a burst.
func (c *checker) walRate(ctx context.Context) (float64, error) {
	var rate float64
	err := c.tx.QueryRow(ctx, `
		SELECT (wal_bytes / greatest(extract(epoch FROM pg_catalog.clock_timestamp() - stats_reset), 600))::float8
		FROM pg_catalog.pg_stat_wal`).Scan(&rate)
	if err != nil {
		return 0, fmt.Errorf("measure the WAL rate: %w", err)
	}
	return rate, nil
}

const (
	// shortOutage is the least that the WAL of a slot must last for, longOutage what is advised: a night.
	shortOutage = time.Hour
	longOutage  = 12 * time.Hour
)

// mostRetained asks for the most WAL that any slot of the server keeps, in bytes.
const mostRetained = `
	SELECT coalesce(max(pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
	           THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)), 0)::bigint
	FROM pg_catalog.pg_replication_slots WHERE coalesce(wal_status, '') <> 'lost'`

// keepFor is what max_slot_wal_keep_size should be at a rate, in whole GB.
func keepFor(rate float64, atLeast int64) string {
	bytes := max(int64(rate*longOutage.Seconds()), atLeast, 10<<30)
	return strconv.FormatInt((bytes+1<<30-1)>>30, 10) + "GB"
}

func checkWALKeepSize(ctx context.Context, c *checker) ([]Finding, error) {
	keep, err := c.setting(ctx, "max_slot_wal_keep_size")
	if err != nil {
		return nil, err
	}
	rate, err := c.walRate(ctx)
	if err != nil {
		return nil, err
	}
	// The setting is the whole server's: less than a slot of another program keeps would take that slot away.
	var most int64
	if err := c.tx.QueryRow(ctx, mostRetained).Scan(&most); err != nil {
		return nil, fmt.Errorf("measure what slots keep: %w", err)
	}
	fix := c.set(keep, keepFor(rate, 2*most))
	bytes := keep.number() << 20
	switch {
	case keep.number() < 0:
		fix.Do = joined(fix.Do, "choose it by the room on the disk; this value lasts for 12 hours of the WAL written lately, and is 10GB at least")
		return []Finding{warning("max_slot_wal_keep_size is not set: a slot may keep any amount of WAL",
			"while the relay is down the WAL grows until the disk is full, and then everything stands still; a lost slot is repaired from the tables", fix)}, nil
	case float64(bytes) < rate*shortOutage.Seconds():
		return []Finding{warning(fmt.Sprintf("max_slot_wal_keep_size is %s, and %s of WAL are written per hour", printable.Size(bytes), printable.Size(int64(rate*3600))),
			"a relay that is away for less than an hour loses its slot, and must begin again from the tables", fix)}, nil
	}
	return nil, nil
}

func checkWALBudget(ctx context.Context, c *checker) ([]Finding, error) {
	keep, err := c.setting(ctx, "max_slot_wal_keep_size")
	if err != nil {
		return nil, err
	}
	bytes := keep.number() << 20
	if keep.number() < 0 || c.WALBudget < bytes {
		return nil, nil
	}
	budget := "unlimited"
	fix := &Fix{Do: "set wal_budget (WALPOST_WAL_BUDGET) to auto, which is half of what the server keeps"}
	if c.WALBudget < 1<<50 {
		budget = printable.Size(c.WALBudget)
		var most int64
		if err := c.tx.QueryRow(ctx, mostRetained).Scan(&most); err != nil {
			return nil, fmt.Errorf("measure what slots keep: %w", err)
		}
		fix = c.set(keep, keepFor(0, 2*max(c.WALBudget, most)))
		fix.Do = joined(fix.Do, "or set wal_budget (WALPOST_WAL_BUDGET) to auto, which is half of what the server keeps")
	}
	return []Finding{warning(fmt.Sprintf("wal_budget is %s, but the server keeps no more than %s for a slot", budget, printable.Size(bytes)),
		"a subscriber in debt holds WAL until the budget is spent; here the slot is lost before", fix)}, nil
}

func checkIdleSlotTimeout(ctx context.Context, c *checker) ([]Finding, error) {
	timeout, err := c.setting(ctx, "idle_replication_slot_timeout")
	if err != nil || timeout == nil || timeout.number() == 0 {
		return nil, err
	}
	return []Finding{warning(fmt.Sprintf("idle_replication_slot_timeout is set (%s)", timeout.value),
		"a relay that is stopped for that long loses its slot at the next checkpoint, and must begin again from the tables", c.set(timeout, "0"))}, nil
}

func checkCommitTimestamps(ctx context.Context, c *checker) ([]Finding, error) {
	tracked, err := c.setting(ctx, "track_commit_timestamp")
	if err != nil || tracked.value == "on" {
		return nil, err
	}
	return []Finding{warning("track_commit_timestamp is off", "rows that are sent from a table after a slot was lost are in the order of their ids, which is the order of commits only for writers that lock the key first", c.set(tracked, "on"))}, nil
}

func checkTrackActivities(ctx context.Context, c *checker) ([]Finding, error) {
	tracked, err := c.setting(ctx, "track_activities")
	if err != nil || tracked.value == "on" {
		return nil, err
	}
	return []Finding{warning("track_activities is off", "a standby relay cannot see that the leader has fallen silent, so it takes over late or not at all", c.set(tracked, "on"))}, nil
}

// checkAdvisoryLocks prints no statement: whose session it is only a person can find out.
func checkAdvisoryLocks(ctx context.Context, c *checker) ([]Finding, error) {
	strangers, err := store.FindStrangers(ctx, c.tx, c.Slot)
	switch code := postgres.Code(err); {
	case code == "42P01" || code == "3F000": // undefined_table, invalid_schema_name: the check schema has its say
		return nil, nil
	case err != nil:
		return nil, err
	}
	var found []Finding
	for _, s := range strangers {
		found = append(found, warning(s.String(), "it keeps no relay from leading, but nothing other than a relay has a use for these locks",
			&Fix{Do: fmt.Sprintf("find out whose session pid %d is, and what role %q is for; end the session, or take CONNECT from the role", s.PID, s.Role)}))
	}
	return found, nil
}

// checkHandlerTimeout has no word on wal_sender_timeout: the relay pins it for its session, and answers the
// server whatever a handler does.
func checkHandlerTimeout(_ context.Context, c *checker) ([]Finding, error) {
	var found []Finding
	for _, s := range c.Subscribers {
		if c.Drain > 0 && s.Timeout > c.Drain {
			found = append(found, warning(fmt.Sprintf("its timeout of %v is longer than drain, %v", s.Timeout, c.Drain),
				"a stop of the relay abandons a call that is within its time, and the event comes twice",
				&Fix{Do: fmt.Sprintf("set drain (WALPOST_DRAIN) above %v, or the timeout below %v", s.Timeout, c.Drain)}).about(s.Name))
		}
		if s.StallAfter > 0 && s.Timeout > s.StallAfter {
			found = append(found, warning(fmt.Sprintf("its timeout of %v is longer than stall_after, %v", s.Timeout, s.StallAfter),
				"an event that is being handled, and well within its time, becomes debt",
				&Fix{Do: fmt.Sprintf("set stall_after above %v, or the timeout below %v", s.Timeout, s.StallAfter)}).about(s.Name))
		}
	}
	return found, nil
}

func joined(first, then string) string {
	if first == "" {
		return then
	}
	return first + "; " + then
}
