//go:build soak

package soak

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// endReceiverByLosingTheSlot is endByLosingTheSlot for a soak whose subscriber is a webhook: had lists the ids that its
// receiver has taken, and start starts a relay. No relay runs, and the receiver is well. What is a dead letter is
// neither marked nor sent again.
func endReceiverByLosingTheSlot(t *testing.T, db *testdb.DB, start func() *testprogram.Process, had func() []string) {
	t.Helper()
	wantReceipts(t, db, had())
	dropSlot(t, db)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('after-the-slot-was-lost', 'lesson.completed', 'the-last-key', '{}')`)
	relay := start()
	relay.AwaitStreaming()
	testprogram.Within(t, 10*time.Minute, "every row that is no dead letter to be published", func() bool {
		return db.Int(`SELECT count(*) FROM outbox o WHERE published_at IS NULL AND NOT EXISTS (SELECT FROM walpost.owed d WHERE d.event_id = o.event_id AND d.state = 'dead')`) == 0
	})
	relay.Stop()
	received := had()
	wantReceipts(t, db, received)
	ids := db.Texts(`SELECT event_id FROM outbox o WHERE NOT EXISTS (SELECT FROM walpost.owed d WHERE d.event_id = o.event_id AND d.state = 'dead')`)
	if lost := without(ids, received); len(lost) > 0 {
		t.Errorf("%d events never came, not even when the slot was lost: %s", len(lost), some(lost))
	}
	if got := testprogram.StillToCome(t, db); got != 0 {
		t.Errorf("after the clean stop in the end the server would send %d events again", got)
	}
}

// wantReceipts checks that a row which is marked has come to the receiver.
func wantReceipts(t *testing.T, db *testdb.DB, received []string) {
	t.Helper()
	if untrue := without(db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NOT NULL`), received); len(untrue) > 0 {
		t.Errorf("%d rows are marked, and the receiver has not had them: %s", len(untrue), some(untrue))
	}
}

// without lists what the receiver has not had.
func without(ids, received []string) []string {
	had := make(map[string]bool, len(received))
	for _, id := range received {
		had[id] = true
	}
	return slices.DeleteFunc(ids, func(id string) bool { return had[id] })
}

func some(ids []string) string { return fmt.Sprint(ids[:min(len(ids), 5)]) }
