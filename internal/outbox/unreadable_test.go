package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-53: rows whose payload, time or key the server cannot send stand among fifty others.
func TestRowByRow_givesTheOtherRowsAndSaysWhatCannotBeRead(t *testing.T) {
	db := testdb.NewEncoded(t, "SQL_ASCII")
	table := foreign(t, db, `id text PRIMARY KEY, n int, type text, payload text, created_at text, published_at timestamptz`)
	db.Exec(`INSERT INTO o SELECT 'e' || n, n, 't', 'p' || n, 'now' FROM generate_series(1, 50) n`)
	db.Exec(`UPDATE o SET payload = chr(233) WHERE n IN (7, 8, 40)`)
	db.Exec(`UPDATE o SET created_at = chr(233) WHERE n = 20`)
	db.Exec(`UPDATE o SET id = chr(233) || n WHERE n IN (30, 31)`)
	bad := map[string]string{"e7": "payload", "e8": "payload", "e40": "payload", "e20": "created_at"}

	read := func(table *outbox.Table) (events []*event.Event, err error) {
		return events, postgres.InSnapshot(t.Context(), db.Pinned, "", func(tx pgx.Tx) error {
			return table.Unpublished(t.Context(), tx, func(e *event.Event) error {
				events = append(events, e)
				return nil
			})
		})
	}
	if _, err := read(table); !outbox.Unreadable(err) {
		t.Fatalf("reading all at once ends with %v", err)
	}
	events, err := read(table.RowByRow())
	if err != nil || len(events) != 50 {
		t.Fatalf("%d rows, %v, want 50", len(events), err)
	}
	var fine, keyless []string
	for _, e := range events {
		switch column := bad[e.ID]; {
		case column != "":
			if !strings.Contains(e.Invalid, fmt.Sprintf("cannot send column %q", column)) || e.Payload != nil || e.Row != e.ID {
				t.Errorf("%s is %+v", e.ID, e)
			}
		case strings.HasPrefix(e.ID, "row-"):
			keyless = append(keyless, e.ID)
		case e.Invalid != "" || string(e.Payload) != "p"+e.ID[1:]:
			t.Errorf("%s is %+v", e.ID, e)
		default:
			fine = append(fine, e.ID)
		}
	}
	if len(fine) != 44 || len(slices.Compact(keyless)) != 2 {
		t.Errorf("%d fine rows and %q without a key, want 44 and two", len(fine), keyless)
	}

	// By reference, as a debt reads them.
	err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		rows, err := table.Fetch(t.Context(), tx, []string{"e1", "e7", "e50", "gone"})
		if err != nil || len(rows) != 3 {
			t.Fatalf("%d rows, %v, want 3", len(rows), err)
		}
		if string(rows["e1"].Payload) != "p1" || rows["e7"].Invalid == "" || rows["e50"].Invalid != "" {
			t.Errorf("got %+v, %+v, %+v", rows["e1"], rows["e7"], rows["e50"])
		}
		again, err := table.Find(t.Context(), tx, []string{"e8", "e9"})
		if err != nil || len(again) != 2 {
			t.Errorf("%d rows found, %v, want 2", len(again), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
