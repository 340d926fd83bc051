package relay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/testdb"
)

// insertPayloads writes an event each, whose payload has a text that the server computes.
func insertPayloads(db *testdb.DB, key string, payloads map[string]string, ids ...string) {
	for _, id := range ids {
		text := payloads[id]
		if text == "" {
			text = "'fine'"
		}
		db.Exec(fmt.Sprintf(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
			VALUES ('%s', 'lesson.completed', '%s', jsonb_build_object('x', %s))`, id, key, text))
	}
}

// S-53: a byte of an SQL_ASCII database that is no UTF-8. The relay says what the server cannot send, where, and the
// way out; the repair makes a dead letter of that row and sends the others.
func TestRelay_saysWhereItIsStuckAndTheWayOutOfIt(t *testing.T) {
	t.Parallel()
	db := testdb.NewEncoded(t, "SQL_ASCII")
	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	insertPayloads(db, "a", map[string]string{"bad": "'caf' || chr(233)"}, "before", "bad", "after")
	insertPayloads(db, "b", nil, "other")
	sub.await(t, "before")
	var health relay.Health
	eventually(t, "the relay is stuck", func() bool {
		health = r.Health()
		return health.State == relay.Stuck
	})
	said := strings.Join(health.Problems, "; ")
	for _, want := range []string{"22021", "0xe9", "of the WAL", "pg_drop_replication_slot", "dead letter"} {
		if health.Ready || !strings.Contains(said, want) {
			t.Errorf("ready %v, it says %s, want %q in it", health.Ready, said, want)
		}
	}
	if got := metric(t, o, "walpost_stuck", ""); got != 1 {
		t.Errorf("walpost_stuck is %v, want 1", got)
	}
	// Between its attempts no one reads the slot.
	eventually(t, "the slot is dropped, as it says", func() bool {
		_, err := db.Pool.Exec(t.Context(), `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
		return err == nil
	})
	sub.await(t, "after")
	sub.await(t, "other")
	eventually(t, "the relay streams again", func() bool { return r.Health().Ready })
	letters := db.Texts(`SELECT event_id || ' ' || state || ' ' || row_id || ' ' || invalid FROM walpost.owed WHERE event_id = 'bad'`)
	if len(letters) != 1 || !strings.HasPrefix(letters[0], "bad dead 2 ") || !strings.Contains(letters[0], `cannot send column "payload"`) {
		t.Errorf("owed: %q, want bad as a dead letter that points to its row", letters)
	}
	if got := metric(t, o, "walpost_stuck", ""); got != 0 {
		t.Errorf("walpost_stuck is %v, want 0", got)
	}
	insertPayloads(db, "a", nil, "live")
	sub.await(t, "live")

	// A person lets it be sent again although nothing has changed: it is a dead letter again, and holds up nothing.
	db.Exec(`UPDATE walpost.owed SET state = 'waiting', attempts = 0 WHERE event_id = 'bad'`)
	eventually(t, "it is dead again", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE event_id = 'bad' AND state = 'dead'`) == 1
	})
	r.shutDown()
}

// S-53: the value stands in a column that walpost does not use. The server would send it all the same, and the
// repair does not ask for it: nothing is a dead letter.
func TestRepair_readsOnlyTheColumnsThatItNeeds(t *testing.T) {
	t.Parallel()
	db := testdb.NewEncoded(t, "SQL_ASCII")
	db.Exec(`ALTER TABLE outbox ADD COLUMN note text`)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, note) VALUES ('bad', 'lesson.completed', 'a', '{}', chr(233))`)
	insertPayloads(db, "a", nil, "after")
	eventually(t, "the relay is stuck", func() bool { return r.Health().State == relay.Stuck })
	eventually(t, "the slot is dropped, as it says", func() bool {
		_, err := db.Pool.Exec(t.Context(), `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
		return err == nil
	})
	sub.await(t, "bad")
	sub.await(t, "after")
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
}
