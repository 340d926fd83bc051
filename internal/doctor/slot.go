package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// repairs is what a relay does by itself about a slot that cannot be trusted.
const repairs = "start the relay, or restart it: it repairs the slot and sends every unpublished row of the tables first"

func checkSlot(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slotOfName(ctx)
	if err != nil {
		return nil, err
	}
	known, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	if slot != nil {
		if err := slot.Check(); err != nil {
			if f, isSetup := fromSetup(err, "it is another program's, and the relay touches no slot that is not its own"); isSetup {
				return []Finding{f}, nil
			}
			return nil, err
		}
	}
	switch {
	case slot == nil && known == nil:
		return []Finding{skipped(fmt.Sprintf("there is no slot %q yet; the relay makes it", c.Slot))}, nil
	case known != nil && known.State == store.SlotCreating:
		return []Finding{skipped(fmt.Sprintf("slot %q is being made, or will be at the next start of the relay", c.Slot))}, nil
	case slot == nil:
		return []Finding{warning(fmt.Sprintf("slot %q is gone", c.Slot), "the WAL since it was last confirmed may be gone, too; what is unpublished is in the tables", c.repair(ctx))}, nil
	case known == nil:
		text := fmt.Sprintf("slot %q is there, but walpost did not make it", c.Slot)
		if slot.Lost() {
			text += fmt.Sprintf(", and it is lost: %s", slot.LostReason())
		}
		return []Finding{warning(text, "a person prepared it, or another program uses the name",
			&Fix{Do: "if it was prepared for walpost, nothing (a lost one must be made again); else choose another name with slot (WALPOST_SLOT)"})}, nil
	case slot.Lost():
		fix := c.repair(ctx)
		if !known.Ours { // the relay drops no slot that it did not make
			fix = &Fix{As: "the relay's role, while no relay runs", SQL: []advice.Statement{advice.DropSlot(c.Slot), advice.CreateSlot(c.Slot)}, Do: repairs}
		}
		return []Finding{problem(fmt.Sprintf("slot %q is lost: %s", c.Slot, slot.LostReason()), "it can never be read again; what is unpublished is in the tables", fix)}, nil
	}
	return nil, nil
}

// checkSlotReader finds another program that reads the slot. Every role sees the names of all sessions.
func checkSlotReader(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot == nil || !slot.Active {
		return nil, err
	}
	var name, role string
	err = c.tx.QueryRow(ctx, `SELECT coalesce(application_name, ''), coalesce(usename::text, '?') FROM pg_catalog.pg_stat_activity WHERE pid = $1`, slot.ActivePID).Scan(&name, &role)
	if errors.Is(err, pgx.ErrNoRows) { // it has left meanwhile
		return nil, nil
	}
	if err != nil || strings.HasPrefix(name, "walpost/") {
		return nil, err
	}
	if name == "" {
		name = "without a name"
	} else {
		name = strconv.Quote(name)
	}
	return []Finding{problem(fmt.Sprintf("another program reads the slot: %s of role %q, pid %d", name, role, slot.ActivePID), "what it confirms is gone for walpost, and walpost cannot start while it reads",
		&Fix{Do: "stop that program if it reads the slot by mistake (its session is in pg_stat_activity); or choose another name with slot (WALPOST_SLOT)"})}, nil
}

// checkSlotMoved relies on the order of the two reads: the record only grows, and is written before the slot
// moves, so a slot that was below it cannot be seen above it.
func checkSlotMoved(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot == nil || slot.Lost() {
		return nil, err
	}
	known, err := c.record(ctx)
	if err != nil || known == nil || known.State != store.SlotReady {
		return nil, err
	}
	if slot.Confirmed <= known.Confirmed {
		return nil, err
	}
	return []Finding{problem(fmt.Sprintf("the slot stands at %v, beyond the %v that walpost recorded: another program has moved or created it", slot.Confirmed, known.Confirmed),
		"events in between are not in the stream any more; what is unpublished is in the tables", c.repair(ctx))}, nil
}

func checkSameServer(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot == nil {
		return nil, err
	}
	known, err := c.record(ctx)
	if err != nil || known == nil || known.State != store.SlotReady {
		return nil, err
	}
	if c.recovery { // the check primary has its say
		return []Finding{unknown("not checked", "the server is a standby")}, nil
	}
	system, err := c.system(ctx)
	if err != nil || known.SystemID == system.ID && known.Timeline == system.Timeline {
		return nil, err
	}
	return []Finding{problem(fmt.Sprintf("the slot was read from server %s, timeline %d; this is %s, timeline %d", known.SystemID, known.Timeline, system.ID, system.Timeline),
		"after a failover or a restore the slot may stand beyond events that this server's tables still have to send", c.repair(ctx))}, nil
}

// checkPositions finds positions that a relay would not believe.
func checkPositions(ctx context.Context, c *checker) ([]Finding, error) {
	known, err := c.record(ctx)
	if err != nil || known == nil || known.State != store.SlotReady {
		return nil, err
	}
	if c.recovery {
		return []Finding{unknown("not checked", "the server is a standby")}, nil
	}
	var doubts []string
	confirmed, err := store.FindDoubtConfirmed(ctx, c.tx, c.Slot)
	if err != nil {
		return nil, err
	}
	if confirmed != "" {
		doubts = append(doubts, confirmed)
	}
	subscribers, err := store.Subscribers(ctx, c.tx, c.Slot)
	if err != nil {
		return nil, err
	}
	for _, sub := range subscribers {
		if sub.Doubt != "" {
			doubts = append(doubts, fmt.Sprintf("subscriber %q: %s", sub.Name, sub.Doubt))
		}
	}
	fix := c.repair(ctx)
	if fix.Do == repairs {
		fix.Do = "restart the relay: it does not believe the position, and sends what is unpublished from the tables"
	}
	var found []Finding
	for _, doubt := range doubts {
		found = append(found, problem(doubt, "that cannot be, so someone else wrote it, and it says nothing about what was delivered", fix))
	}
	return found, nil
}

func checkSlotDanger(ctx context.Context, c *checker) ([]Finding, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot == nil || slot.Lost() || slot.SafeBytes == nil {
		return nil, err
	}
	keep, err := c.setting(ctx, "max_slot_wal_keep_size")
	if err != nil {
		return nil, err
	}
	rate, err := c.walRate(ctx)
	if err != nil {
		return nil, err
	}
	safe := max(0, *slot.SafeBytes)
	fix := c.set(keep, keepFor(rate, 2*slot.RetainedBytes))
	fix.Do = joined(fix.Do, "start the relay if it does not run; walpost status says who holds the WAL")
	left := "any time"
	if rate > 0 {
		left = printable.Age(time.Duration(min(float64(safe)/rate, 1e9) * float64(time.Second)))
	}
	text := fmt.Sprintf("the slot keeps %s of WAL, and is lost when %s more are written; at the rate of late that takes %s", printable.Size(slot.RetainedBytes), printable.Size(safe), left)
	const why = "a lost slot must begin again from the tables, and what has no table is gone"
	switch {
	case slot.WALStatus == "unreserved":
		return []Finding{problem(text, why, fix)}, nil
	case safe < keep.number()<<20/4, float64(safe) < rate*shortOutage.Seconds()/4:
		return []Finding{warning(text, why, fix)}, nil
	}
	return nil, nil
}

// checkOldTransactions: an open transaction holds the WAL from its beginning on, and a slot cannot be made
// while it runs.
func checkOldTransactions(ctx context.Context, c *checker) ([]Finding, error) {
	const why = "slots keep the WAL from its beginning on, dead rows stay, and no slot can be made before it ends"
	var found []Finding
	var pid int
	var role, state string
	var age time.Duration
	rows, err := c.tx.Query(ctx, `
		SELECT pid, coalesce(usename::text, '?'), coalesce(state, '?'), pg_catalog.now() - xact_start
		FROM pg_catalog.pg_stat_activity
		WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL AND backend_type = 'client backend')
		  AND pid <> pg_catalog.pg_backend_pid() AND xact_start < pg_catalog.now() - $1::interval
		ORDER BY xact_start LIMIT 5`, c.OldAfter)
	if err != nil {
		return nil, err
	}
	_, err = pgx.ForEachRow(rows, []any{&pid, &role, &state, &age}, func() error {
		found = append(found, warning(fmt.Sprintf("a transaction of role %q has been open for %s (%s)", role, printable.Age(age), state), why,
			&Fix{Do: fmt.Sprintf("find out what it does (SELECT * FROM pg_stat_activity WHERE pid = %d), and let the program that began it end it", pid)}).about("pid "+strconv.Itoa(pid)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	var gid string
	rows, err = c.tx.Query(ctx, `
		SELECT gid, owner::text, pg_catalog.now() - prepared FROM pg_catalog.pg_prepared_xacts
		WHERE prepared < pg_catalog.now() - $1::interval ORDER BY prepared LIMIT 5`, c.OldAfter)
	if err != nil {
		return nil, err
	}
	_, err = pgx.ForEachRow(rows, []any{&gid, &role, &age}, func() error {
		found = append(found, warning(fmt.Sprintf("a prepared transaction of role %q has waited for %s", role, printable.Age(age)), why,
			&Fix{Do: "let its transaction manager commit it or roll it back; it is in pg_prepared_xacts"}).about(gid))
		return nil
	})
	return found, err
}

// checkOtherSlots: the server keeps about max_wal_size on its own; what an idle slot keeps beyond that is
// what fills the disk.
func checkOtherSlots(ctx context.Context, c *checker) ([]Finding, error) {
	most, err := c.setting(ctx, "max_wal_size")
	if err != nil {
		return nil, err
	}
	// A slot that walpost has recorded under another name was left behind when slot: got a new one, or belongs to
	// another relay of this database.
	former := []string{}
	if there, err := store.HasSlots(ctx, c.tx); err != nil {
		return nil, err
	} else if there {
		records, err := store.ListSlotRecords(ctx, c.tx)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.Name != c.Slot {
				former = append(former, r.Name)
			}
		}
	}
	rows, err := c.tx.Query(ctx, `
		SELECT s.slot_name::text, coalesce(s.database::text, 'physical'), pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn)::bigint AS held
		FROM pg_catalog.pg_replication_slots s, (SELECT CASE WHEN pg_catalog.pg_is_in_recovery()
		         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) w
		WHERE NOT s.active AND s.slot_name <> $1 AND s.restart_lsn IS NOT NULL AND coalesce(s.wal_status, '') <> 'lost'
		  AND (pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn) > $2 OR s.slot_name::text = ANY ($3))
		ORDER BY held DESC`, c.Slot, most.number()<<20, former)
	if err != nil {
		return nil, err
	}
	var found []Finding
	var name, of string
	var held int64
	_, err = pgx.ForEachRow(rows, []any{&name, &of, &held}, func() error {
		if slices.Contains(former, name) && of == c.database {
			found = append(found, warning(fmt.Sprintf("slot %q is one of walpost's in this database, has no reader and keeps %s of WAL", name, printable.Size(held)),
				"slot: has another name now, or the relay of that slot is down; the server keeps WAL for it until the disk is full",
				&Fix{Do: "start its relay; or, if it was renamed, remove the old slot as docs/operating.md says (Remove walpost)"}).about(name))
			return nil
		}
		found = append(found, warning(fmt.Sprintf("slot %q (%s) has no reader and keeps %s of WAL", name, of, printable.Size(held)), "it fills the disk that all of the server stands on",
			&Fix{Do: "start its reader, or drop the slot if no program needs it any more: the doctor cannot know"}).about(name))
		return nil
	})
	return found, err
}

// checkCatalogXmin: a slot holds back the cleaning of the catalogue (or, a physical one with feedback, of
// everything). Half of the way to the forced vacuum is late.
func checkCatalogXmin(ctx context.Context, c *checker) ([]Finding, error) {
	limit, err := c.setting(ctx, "autovacuum_freeze_max_age")
	if err != nil {
		return nil, err
	}
	rows, err := c.tx.Query(ctx, `
		SELECT slot_name::text, active, greatest(pg_catalog.age(catalog_xmin), pg_catalog.age(xmin))::bigint AS age FROM pg_catalog.pg_replication_slots
		WHERE greatest(pg_catalog.age(catalog_xmin), pg_catalog.age(xmin)) > $1 ORDER BY age DESC`, limit.number()/2)
	if err != nil {
		return nil, err
	}
	var found []Finding
	var name string
	var active bool
	var age int64
	_, err = pgx.ForEachRow(rows, []any{&name, &active, &age}, func() error {
		fix := &Fix{Do: "let its reader catch up; see the check old-transaction"}
		switch {
		case name == c.Slot && !active:
			fix = &Fix{Do: "start the relay"}
		case !active:
			fix = &Fix{Do: "start its reader, or drop the slot if no program needs it any more: the doctor cannot know"}
		}
		found = append(found, warning(fmt.Sprintf("slot %q keeps rows of the catalogue alive that died %s ago", name, printable.Count(age, "transaction")),
			fmt.Sprintf("dead rows cannot be removed meanwhile; at an age of %d vacuums are forced, and much later the server refuses writes", limit.number()), fix).about(name))
		return nil
	})
	return found, err
}
