// Package docs keeps promises that the pages under docs/ make: what they show is compiled, compared and run.
package docs

import (
	"context"
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of database/sql

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/pgoutput"
	"github.com/backendstart/walpost/internal/testdb"
)

const writingEvents = "../../docs/writing-events.md"

func TestWritingEvents_showsTheGoCodeThatIsTested(t *testing.T) {
	shown := blocks(t, writingEvents, "go")
	tested := declarations(t, "order_test.go")
	if len(shown) != len(tested) {
		t.Errorf("the page shows %d pieces of Go, order_test.go declares %d", len(shown), len(tested))
	}
	for i := range min(len(shown), len(tested)) {
		if shown[i] != tested[i] {
			t.Errorf("the page shows\n%s\norder_test.go has\n%s\ncopy it over", shown[i], tested[i])
		}
	}
}

func TestWritingEvents_SQLRunsAsShown(t *testing.T) {
	db := testdb.New(t)
	for _, block := range blocks(t, writingEvents, "sql") {
		run(t, db, block)
	}
	got := db.Text(`SELECT string_agg(concat_ws(' ', event_type, aggregate_type, aggregate_id, partition_key), ', ' ORDER BY id) FROM outbox`)
	want := "order.paid order 7 7, customer.greeted customer 42 customer:42"
	if got != want {
		t.Errorf("the outbox holds %q, want %q", got, want)
	}
	if got, want := db.Text(`SELECT payload::text FROM outbox WHERE event_type = 'order.paid'`), `{"total": 49.90, "order_id": 7}`; got != want {
		t.Errorf("payload is %s, want %s", got, want)
	}
	if got := db.Int(`SELECT count(*) FROM orders WHERE status = 'paid'`); got != 2 {
		t.Errorf("%d orders are paid, want 2", got)
	}
}

// What the page writes comes out of the WAL as valid events, also from the message without a table.
func TestWritingEvents_SQLBecomesValidEvents(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE PUBLICATION page FOR TABLE outbox WITH (publish = 'insert')`)
	db.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, db.Name)
	for _, block := range blocks(t, writingEvents, "sql") {
		run(t, db, block)
	}

	var got []string
	for _, e := range streamed(t, db) {
		if e.Invalid != "" {
			t.Errorf("event %q with payload %s is invalid: %s", e.ID, e.Payload, e.Invalid)
		}
		got = append(got, e.Type+" key="+e.Key+" correlation="+e.CorrelationID())
	}
	want := []string{
		"order.paid key=7 correlation=req-4711",
		"customer.greeted key=customer:42 correlation=",
		"order.paid key=8 correlation=",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are %q, want %q", got, want)
	}
}

// streamed decodes what the slot named like the database holds.
func streamed(t *testing.T, db *testdb.DB) []*event.Event {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'page', 'messages', 'true')`, db.Name)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	source := outbox.Source{Name: "page"}
	decoder := pgoutput.NewDecoder()
	var events []*event.Event
	for _, frame := range frames {
		message, err := decoder.Decode(frame)
		if err != nil {
			t.Fatal(err)
		}
		switch m := message.(type) {
		case *pgoutput.Insert:
			names := make([]string, len(m.Relation.Columns))
			for i, column := range m.Relation.Columns {
				names[i] = column.Name
			}
			layout, err := source.Layout(names)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, layout.Event(m.Values))
		case *pgoutput.LogicalMessage:
			events = append(events, source.EventFromMessage(m.Content))
		}
	}
	return events
}

func TestWritingEvents_payingTwiceInSQLMakesOneEvent(t *testing.T) {
	db := testdb.New(t)
	sql := blocks(t, writingEvents, "sql")
	run(t, db, sql[0])
	run(t, db, sql[1])
	run(t, db, sql[1])
	if got := db.Int(`SELECT count(*) FROM outbox`); got != 1 {
		t.Errorf("%d events, want 1", got)
	}
}

// Each way in Go is held against what the page says must hold.
func TestWritingEvents_GoWritesTheEventWithTheChangeOrNeither(t *testing.T) {
	for _, way := range waysInGo {
		t.Run(way.name, func(t *testing.T) {
			db, pay := orders(t, way)

			run(t, db, `ALTER TABLE outbox ADD CONSTRAINT refuse CHECK (false) NOT VALID`)
			if err := pay(t.Context(), 7); err == nil {
				t.Fatal("an event that the database refused was no error")
			}
			if got := db.Text(`SELECT status FROM orders WHERE id = 7`); got != "open" {
				t.Fatalf("order is %q although its event was refused, want open", got)
			}
			run(t, db, `ALTER TABLE outbox DROP CONSTRAINT refuse`)

			if err := pay(t.Context(), 7); err != nil {
				t.Fatal(err)
			}
			if got, want := db.Text(`SELECT payload::text FROM outbox`), `{"total": 49.90, "order_id": 7}`; got != want {
				t.Errorf("payload is %s, want %s", got, want)
			}
		})
	}
}

func TestWritingEvents_GoMakesOneEventHoweverOftenAndAtOnceItIsCalled(t *testing.T) {
	for _, way := range waysInGo {
		t.Run(way.name, func(t *testing.T) {
			db, pay := orders(t, way)
			var calls sync.WaitGroup
			for range 8 {
				calls.Go(func() {
					if err := pay(t.Context(), 7); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			if got := db.Int(`SELECT count(*) FROM outbox`); got != 1 {
				t.Errorf("%d events, want 1", got)
			}
		})
	}
}

func TestWritingEvents_GoDrawsNoIDBeforeItHoldsTheKey(t *testing.T) {
	for _, way := range waysInGo {
		t.Run(way.name, func(t *testing.T) {
			db, pay := orders(t, way)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()

			other, err := db.Pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Rollback(context.WithoutCancel(ctx))
			if _, err := other.Exec(ctx, `UPDATE orders SET total = total + 1 WHERE id = 7`); err != nil {
				t.Fatal(err)
			}
			paid := make(chan error, 1)
			go func() { paid <- pay(ctx, 7) }()
			const waiting = `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01)
				WHERE datname = current_database() AND wait_event_type = 'Lock'`
			for db.Int(waiting) == 0 {
				if ctx.Err() != nil {
					t.Fatal("the writer never came to wait for the order")
				}
			}
			if got := db.Int(`SELECT count(*) FROM outbox_id_seq WHERE is_called`); got != 0 {
				t.Error("an id was drawn while another writer held the order")
			}
			if err := other.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-paid; err != nil {
				t.Fatal(err)
			}
			if got, want := db.Text(`SELECT payload->>'total' FROM outbox`), "50.90"; got != want {
				t.Errorf("the event says %s, want %s: what the order was when it was paid", got, want)
			}
		})
	}
}

type way struct {
	name string
	open func(t *testing.T, db *testdb.DB) func(ctx context.Context, orderID int64) error
}

var waysInGo = []way{
	{"pgx", func(_ *testing.T, db *testdb.DB) func(context.Context, int64) error {
		return func(ctx context.Context, id int64) error { return PayOrder(ctx, db.Pool, id) }
	}},
	{"database/sql", func(t *testing.T, db *testdb.DB) func(context.Context, int64) error {
		pool, err := sql.Open("pgx", db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pool.Close() })
		return func(ctx context.Context, id int64) error { return PayOrderSQL(ctx, pool, id) }
	}},
}

// orders is a database with the table of the page, and a way to pay in it.
func orders(t *testing.T, way way) (*testdb.DB, func(context.Context, int64) error) {
	t.Helper()
	db := testdb.New(t)
	run(t, db, blocks(t, writingEvents, "sql")[0])
	return db, way.open(t, db)
}

// run executes several statements at once, as psql would send them.
func run(t *testing.T, db *testdb.DB, statements string) {
	t.Helper()
	conn, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), statements).ReadAll(); err != nil {
		t.Fatalf("%v in\n%s", err, statements)
	}
}

// blocks returns the fenced blocks of one language, in order.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, part := range strings.Split(string(text), "\n```"+language+"\n")[1:] {
		block, _, closed := strings.Cut(part, "\n```\n")
		if !closed {
			t.Fatalf("%s: a %s block is never closed", page, language)
		}
		found = append(found, block)
	}
	if len(found) == 0 {
		t.Fatalf("%s shows no %s", page, language)
	}
	return found
}

// declarations returns the source of each type and function of a file, with its comment.
func declarations(t *testing.T, file string) []string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, declared := range parsed.Decls {
		start := declared.Pos()
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Doc != nil {
				start = d.Doc.Pos()
			}
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			if d.Doc != nil {
				start = d.Doc.Pos()
			}
		}
		found = append(found, string(source[files.Position(start).Offset:files.Position(declared.End()).Offset]))
	}
	return found
}
