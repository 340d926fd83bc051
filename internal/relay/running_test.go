package relay_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// The slot was moved past a commit that waits for a standby, and no younger transaction has ended since: then the
// snapshot of a repair shows neither the row nor that something runs.
func TestRelay_missesNoCommitThatWaitsForAStandbyInARepair(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	sub := keeping(nil)
	streaming(t, options(t, db, sub)).shutDown()
	committed := invisible(t, server, db, "e")
	db.Exec(advance, db.Name)
	o, log := logged(t, options(t, db, sub))
	start(t, o)
	eventually(t, "a repair that waits for it, or one whose own commit waits for a standby", func() bool {
		return strings.Contains(log.String(), "waits for running transactions") ||
			db.Int(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) > 2
	})
	committed()
	sub.await(t, "e")
}

// A commit that is being flushed while a repair looks has its place in the WAL and is in no snapshot. Its event
// comes by the stream, and after the rows of its key that the repair has found.
func TestRelay_keepsTheOrderOfCommitsThatAreUnderWayInARepair(t *testing.T) {
	t.Parallel()
	// Each commit stays invisible for 50 ms.
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"fsync": "on", "commit_delay": "50000", "commit_siblings": "0"}))
	sub := keeping(nil)
	streaming(t, options(t, db, sub)).shutDown()
	insert(db, "first", "first")
	db.Exec(advance, db.Name)

	const writers = 10
	enough := make(chan struct{})
	var wrote [writers]int
	var writing, begun sync.WaitGroup
	for w := range writers {
		conn := session(t, db.DSN)
		begun.Add(1)
		writing.Go(func() {
			for {
				select {
				case <-enough:
					return
				default:
				}
				_, err := conn.Exec(t.Context(), `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', $2, '{}')`,
					fmt.Sprintf("%d/%04d", w, wrote[w]), fmt.Sprint(w))
				if err != nil {
					t.Error(err)
					return
				}
				if wrote[w]++; wrote[w] == 1 {
					begun.Done()
				}
			}
		})
	}
	begun.Wait()
	streaming(t, options(t, db, sub))
	close(enough)
	writing.Wait()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })

	var next [writers]int
	for _, ev := range sub.events() {
		var w, n int
		if _, err := fmt.Sscanf(ev.ID, "%d/%d", &w, &n); err != nil {
			continue // the first one
		}
		if n != next[w] {
			t.Errorf("key %d: event %d came when %d was next", w, n, next[w])
		}
		next[w] = n + 1
	}
	if next != wrote {
		t.Errorf("delivered %v, written %v", next, wrote)
	}
}
