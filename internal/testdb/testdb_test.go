package testdb

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/postgres"
)

func TestNew_givesEachTestAMigratedDatabaseOfItsOwn(t *testing.T) {
	a, b := New(t), New(t)
	if a.Name == b.Name {
		t.Fatalf("two databases are called %s", a.Name)
	}
	for _, table := range []string{"outbox", "lesson_progress", "learners", "user_achievements", "analytics_events", "notifications",
		"recommendations", "walpost.owed", "walpost.slots"} {
		if got := a.Int("SELECT count(*) FROM " + table); got != 0 {
			t.Errorf("%s has %d rows, want none", table, got)
		}
	}
	a.Exec("INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')")
	if got := b.Int("SELECT count(*) FROM outbox"); got != 0 {
		t.Errorf("the other database has %d rows, want none", got)
	}
	if got, want := a.Text("SELECT current_database()::text"), a.Name; got != want {
		t.Errorf("connected to %s, want %s", got, want)
	}
}

func TestNewEmpty_hasNoTables(t *testing.T) {
	db := NewEmpty(t)
	if got := db.Texts("SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('public', 'walpost')"); len(got) != 0 {
		t.Errorf("tables %v, want none", got)
	}
}

func TestCleanup_dropsTheDatabaseWithSlotsThatAreInUse(t *testing.T) {
	outer := NewEmpty(t)
	outlives := t
	var name string
	t.Run("a test that leaves its relay running", func(t *testing.T) {
		db := NewEmpty(t)
		name = db.Name
		conn := stream(t, db)
		// Someone has to hold the connection, or the garbage collector closes its socket.
		outlives.Cleanup(func() { _ = conn.Close(context.Background()) })
		if got := outer.Int("SELECT count(*) FROM pg_replication_slots WHERE active AND database = $1", name); got != 1 {
			t.Fatalf("%d active slots, want 1", got)
		}
	})
	if got := outer.Int("SELECT count(*) FROM pg_replication_slots WHERE database = $1", name); got != 0 {
		t.Errorf("%d slots left, want none", got)
	}
	if got := outer.Int("SELECT count(*) FROM pg_database WHERE datname = $1", name); got != 0 {
		t.Errorf("the database is still there")
	}
}

// stream starts replication on a slot named after the database, on the connection that it returns.
func stream(t *testing.T, db *DB) *pgconn.PgConn {
	t.Helper()
	config, err := postgres.ReplicationConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec("CREATE PUBLICATION p")
	if _, err := pglogrepl.CreateReplicationSlot(ctx, conn, db.Name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{}); err != nil {
		t.Fatal(err)
	}
	err = pglogrepl.StartReplication(ctx, conn, db.Name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'p'"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestOn_dropsNothingOnAServerThatTheTestKilled(t *testing.T) {
	server := NewServer(t, map[string]string{"wal_sender_timeout": "1s"})
	db := On(t, server)
	if got, want := db.Text("SHOW wal_sender_timeout"), "1s"; got != want {
		t.Errorf("wal_sender_timeout %s, want %s", got, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := server.Kill(ctx); err != nil {
		t.Fatal(err)
	}
}
