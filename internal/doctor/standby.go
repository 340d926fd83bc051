package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
)

// failoverSlots is the first version that copies logical slots to standbys.
// (PostgreSQL manual, "Logical Replication Failover")
const failoverSlots = 170000

const beforeFailoverSlots = "before Postgres 17 no standby can have the slot; after a failover the relay creates it again and sends every unpublished row of the tables"

func checkFailoverSlot(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot == nil || c.recovery {
		return nil, err
	}
	known, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	failover, err := c.texts(ctx, `SELECT to_jsonb(s)->>'failover' FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1`, c.Slot)
	if err != nil || len(failover) == 0 || failover[0] == "true" {
		return nil, err
	}
	fix := &Fix{Do: "walpost has not used this slot yet; if it was prepared for walpost, let it be marked for failover by the person who prepared it"}
	if known != nil {
		fix = &Fix{
			As:  "the relay's role on a replication connection (psql 'replication=database …'), while no relay runs",
			SQL: []advice.Statement{advice.MarkForFailover(c.Slot)}}
	}
	return []Finding{warning("the slot is not marked for failover", "no standby keeps a copy of it; after a failover the relay must begin again from the tables", fix)}, nil
}

// checkStandbySlots finds names in synchronized_standby_slots that hold the stream back for ever.
func checkStandbySlots(ctx context.Context, c *checker) ([]Finding, error) {
	setting, err := c.setting(ctx, "synchronized_standby_slots")
	if err != nil || setting == nil || setting.value == "" {
		return nil, err
	}
	present, err := c.texts(ctx, `SELECT slot_name::text FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' AND active`)
	if err != nil {
		return nil, err
	}
	return c.judgeStandbySlots(setting, present), nil
}

func (c *checker) judgeStandbySlots(setting *setting, present []string) []Finding {
	var away, stay []string
	for _, name := range splitList(setting.value) {
		found := false
		for _, p := range present {
			found = found || p == name
		}
		if found {
			stay = append(stay, name)
		} else {
			away = append(away, name)
		}
	}
	if away == nil {
		return nil
	}
	fix := c.set(setting, strings.Join(stay, ", "))
	fix.Do = joined(fix.Do, "or bring the standby back")
	return []Finding{problem(fmt.Sprintf("synchronized_standby_slots names slots that no standby reads: %s", list(away)),
		"the server sends no event before those standbys have it, so nothing is delivered", fix)}
}

// checkStandbySync asks the standby, because the primary does not know.
func checkStandbySync(ctx context.Context, c *checker) ([]Finding, error) {
	if c.StandbyURL == "" {
		if c.version < failoverSlots {
			return []Finding{skipped(beforeFailoverSlots)}, nil
		}
		return []Finding{unknown("whether a standby has the slot is seen only there", "name one with --standby (WALPOST_STANDBY_URL); if there is none, a failover is not a concern")}, nil
	}
	pool, err := postgres.OpenOne(ctx, c.StandbyURL, application)
	if err != nil {
		return nil, err
	}
	defer closeSoon(pool)
	s := &checker{Options: c.Options, pool: pool, role: c.role, database: c.database}
	var found []Finding
	err = postgres.InReadOnly(ctx, pool, limits, func(tx pgx.Tx) (err error) {
		s.tx = tx
		found, err = s.checkStandby(ctx)
		return err
	})
	return found, postgres.Mask(err, c.StandbyURL)
}

func (c *checker) checkStandby(ctx context.Context) ([]Finding, error) {
	const at = "a superuser, on the standby"
	err := c.tx.QueryRow(ctx, `SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery()`).Scan(&c.version, &c.recovery)
	if err != nil {
		return nil, err
	}
	if !c.recovery {
		return []Finding{problem("the server of --standby is no standby", "it may be an old primary: two of them with a relay each deliver twice",
			&Fix{Do: "point --standby (WALPOST_STANDBY_URL) at a standby, and make sure that no old primary is running"})}, nil
	}
	wanted := []struct{ name, value, why string }{
		{"hot_standby_feedback", "on", "without it the primary removes rows that the slot's copy needs, and the copy becomes useless"},
		{"sync_replication_slots", "on", "without it the standby copies no slots"},
	}
	if c.version < failoverSlots {
		return []Finding{skipped(beforeFailoverSlots)}, nil
	}
	var found []Finding
	for _, w := range wanted {
		s, err := c.setting(ctx, w.name)
		if err != nil {
			return nil, err
		}
		if s != nil && s.value != w.value {
			fix := c.set(s, w.value)
			fix.As = at
			found = append(found, problem(fmt.Sprintf("%s is %s on the standby", w.name, s.value), w.why, fix))
		}
	}
	name, err := c.setting(ctx, "primary_slot_name")
	if err != nil {
		return nil, err
	}
	if name.value == "" {
		found = append(found, problem("primary_slot_name is not set on the standby", "slots are copied only by a standby that has a physical slot of its own on the primary",
			&Fix{As: at, Do: "make a physical slot on the primary with pg_create_physical_replication_slot, and set primary_slot_name to it on the standby"}))
	}
	conninfo, err := c.setting(ctx, "primary_conninfo") // shown to members of pg_read_all_settings only
	if err != nil {
		return nil, err
	}
	if conninfo != nil && conninfo.value != "" && !strings.Contains(conninfo.value, "dbname=") {
		found = append(found, problem("primary_conninfo of the standby names no dbname", "the worker that copies slots does not know where to connect", &Fix{As: at, Do: "add dbname=… to primary_conninfo and reload"}))
	}
	slots, err := c.texts(ctx, `
		SELECT CASE WHEN to_jsonb(s)->>'synced' = 'true' AND NOT temporary AND to_jsonb(s)->>'invalidation_reason' IS NULL THEN 'synced'
		            WHEN to_jsonb(s)->>'synced' = 'false' AND plugin = 'pgoutput' AND database = pg_catalog.current_database() AND NOT active THEN 'left over'
		            WHEN to_jsonb(s)->>'synced' = 'false' THEN 'foreign'
		            WHEN temporary THEN 'temporary' ELSE to_jsonb(s)->>'invalidation_reason' END
		FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1`, c.Slot)
	if err != nil {
		return nil, err
	}
	return append(found, c.judgeSynced(slots)...), nil
}

func (c *checker) judgeSynced(states []string) []Finding {
	const why = "after a failover now, the relay would have to begin again from the tables"
	wait := &Fix{Do: "wait: it becomes usable once the standby has caught up with the slot; if it stays so, read the standby's log"}
	switch {
	case len(states) == 0:
		return []Finding{problem(fmt.Sprintf("the standby has no slot %q", c.Slot), why, wait)}
	case states[0] == "synced":
		return nil
	case states[0] == "left over":
		return []Finding{problem(fmt.Sprintf("the standby has a slot %q of its own, which keeps the copy away", c.Slot), why,
			&Fix{As: "a superuser, on the standby", SQL: []advice.Statement{advice.DropLeftOverSlot(c.Slot)}})}
	case states[0] == "foreign":
		return []Finding{problem(fmt.Sprintf("another program has a slot %q on the standby, which keeps the copy away", c.Slot), why,
			&Fix{Do: "find out whose it is (SELECT * FROM pg_replication_slots, on the standby); or choose another name with slot (WALPOST_SLOT)"})}
	case states[0] == "temporary":
		return []Finding{warning("the standby's copy of the slot is not usable yet", why, wait)}
	}
	return []Finding{problem(fmt.Sprintf("the standby's copy of the slot is invalid (%s)", states[0]), why, wait)}
}

func splitList(value string) []string {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.Trim(strings.TrimSpace(name), `"`); name != "" {
			names = append(names, name)
		}
	}
	return names
}
