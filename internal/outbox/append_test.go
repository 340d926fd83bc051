package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func appendEvent(ctx context.Context, db *testdb.DB, ev outbox.New) error {
	return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, ev) })
}

// F-49: numbers are written as the text they came as.
func TestAppend_keepsBigNumbersAndHeaders(t *testing.T) {
	db := testdb.New(t)
	ctx := t.Context()
	payload := `{"n": 12345678901234567890.123456789, "id": 9007199254740993}`
	err := appendEvent(ctx, db, outbox.New{
		ID: "01A", Type: "lesson.completed", AggregateType: "lesson", AggregateID: "7", Key: "42",
		Payload: []byte(payload), Headers: map[string]string{"correlation_id": `"quoted" <é>`},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got, correlation, key string
	err = db.Pool.QueryRow(ctx, `
		SELECT payload::text, headers->>'correlation_id', partition_key FROM public.outbox
		WHERE event_id = '01A' AND event_type = 'lesson.completed' AND aggregate_type = 'lesson' AND aggregate_id = '7'`).
		Scan(&got, &correlation, &key)
	if err != nil {
		t.Fatal(err)
	}
	if want := payload; got != want {
		t.Errorf("payload is %s, want %s", got, want)
	}
	if want := `"quoted" <é>`; correlation != want {
		t.Errorf("correlation id is %s, want %s", correlation, want)
	}
	if key != "42" {
		t.Errorf("key is %q, want 42", key)
	}
}

func TestAppend_storesWhatIsEmptyAsNullAndNoHeadersAsAnObject(t *testing.T) {
	db := testdb.New(t)
	ctx := t.Context()
	if err := appendEvent(ctx, db, outbox.New{ID: "01A", Type: "x", Payload: []byte("null")}); err != nil {
		t.Fatal(err)
	}
	count := db.Int(`
		SELECT count(*) FROM public.outbox
		WHERE aggregate_type IS NULL AND aggregate_id IS NULL AND partition_key IS NULL
		AND payload = 'null' AND headers = '{}' AND published_at IS NULL`)
	if count != 1 {
		t.Errorf("%d rows as wanted, want 1", count)
	}
}

func TestAppend_worksWithTheSimpleProtocol(t *testing.T) {
	db := testdb.New(t)
	config, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, outbox.New{ID: "01A", Type: "x", Payload: []byte(`{"a": 1}`)})
	})
	if err != nil {
		t.Error(err)
	}
}

// insertEvent writes ev in the statement that makes the change, if there is one.
func insertEvent(ctx context.Context, db *testdb.DB, ev outbox.New, change bool) (int64, error) {
	sql, args, err := outbox.InsertFrom("changed", ev, change)
	if err != nil {
		return 0, err
	}
	tag, err := db.Pool.Exec(ctx, `WITH changed AS (SELECT WHERE $1::boolean)`+sql, args...)
	return tag.RowsAffected(), err
}

func TestInsertFrom_writesTheSameRowAsAppendWhereThereIsAChange(t *testing.T) {
	db := testdb.New(t)
	ev := outbox.New{
		ID: "01A", Type: "lesson.completed", AggregateType: "lesson", AggregateID: "7", Key: "42",
		Payload: []byte(`{"n": 12345678901234567890.123456789}`), Headers: map[string]string{"correlation_id": `"quoted" <é>`},
	}
	if err := appendEvent(t.Context(), db, ev); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		id     string
		change bool
		want   int64
	}{{"01B", true, 1}, {"01C", false, 0}} {
		ev.ID = test.id
		if got, err := insertEvent(t.Context(), db, ev, test.change); err != nil || got != test.want {
			t.Errorf("event %s: %d rows, %v; want %d", test.id, got, err, test.want)
		}
	}
	rows := db.Texts(`SELECT (to_jsonb(o) - '{id,event_id,created_at}'::text[])::text FROM public.outbox o ORDER BY id`)
	if len(rows) != 2 || rows[0] != rows[1] {
		t.Errorf("rows are %q, want two that are alike", rows)
	}
	if ids, want := db.Texts(`SELECT event_id FROM public.outbox ORDER BY id`), []string{"01A", "01B"}; !slices.Equal(ids, want) {
		t.Errorf("events are %q, want %q", ids, want)
	}
	ev.ID = "01A"
	if _, err := insertEvent(t.Context(), db, ev, true); postgres.Code(err) != "23505" {
		t.Errorf("a second event of the same id: %v, want 23505", err)
	}
}

func TestAppend_refusesASecondEventOfTheSameID(t *testing.T) {
	db := testdb.New(t)
	ev := outbox.New{ID: "01A", Type: "x", Payload: []byte("1")}
	if err := appendEvent(t.Context(), db, ev); err != nil {
		t.Fatal(err)
	}
	err := appendEvent(t.Context(), db, ev)
	if got, want := postgres.Code(err), "23505"; got != want {
		t.Errorf("code of the second append is %q, want %q (error: %v)", got, want, err)
	}
}

func TestAppend_refusesWhatIsNoEvent(t *testing.T) {
	db := testdb.New(t)
	tests := []struct {
		name string
		ev   outbox.New
	}{
		{"no id", outbox.New{Type: "x", Payload: []byte("1")}},
		{"no type", outbox.New{ID: "1", Payload: []byte("1")}},
		{"no payload", outbox.New{ID: "1", Type: "x"}},
		{"payload that is not JSON", outbox.New{ID: "1", Type: "x", Payload: []byte("{")}},
		{"NUL in the payload", outbox.New{ID: "1", Type: "x", Payload: []byte(`"\u0000"`)}},
		{"NUL in the key", outbox.New{ID: "1", Type: "x", Key: "\x00", Payload: []byte("1")}},
		{"NUL in a header", outbox.New{ID: "1", Type: "x", Payload: []byte("1"), Headers: map[string]string{"a": "\x00"}}},
		{"header that is no UTF-8", outbox.New{ID: "1", Type: "x", Payload: []byte("1"), Headers: map[string]string{"a": "\xff"}}},
		{"key that is no UTF-8", outbox.New{ID: "1", Type: "x", Key: "\xff", Payload: []byte("1")}},
		{"id that is too long", outbox.New{ID: strings.Repeat("1", 65), Type: "x", Payload: []byte("1")}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := appendEvent(t.Context(), db, test.ev); err == nil {
				t.Error("Append took it")
			}
			if _, err := insertEvent(t.Context(), db, test.ev, true); err == nil {
				t.Error("InsertFrom took it")
			}
		})
	}
	if rows := db.Int("SELECT count(*) FROM public.outbox"); rows != 0 {
		t.Errorf("%d rows in the outbox, want 0", rows)
	}
}
