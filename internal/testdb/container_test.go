//go:build docker

package testdb

import (
	"context"
	"testing"
	"time"
)

// The way that is taken where no server binaries are found. WALPOST_TEST_PG_IMAGE names another image.
func TestContainer_servesMigratedDatabasesThatCanReplicate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dsn, stop, err := startContainer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("remove the container: %v", err)
		}
	})
	db := migrate(t, newDB(t, dsn))
	for name, want := range serverSettings {
		if got := db.Text("SELECT current_setting($1)", name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	db.Exec("INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')")
	stream(t, db)
	if got := db.Int("SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = $1", db.Name); got != 1 {
		t.Errorf("%d active slots, want 1", got)
	}
}
