package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// This file reads long lists a page at a time. A page says where the next one begins, as a text that only this file reads;
// whatever happens between two pages, nothing that stays is skipped or comes twice.

// OwedPage is a part of what is owed.
type OwedPage struct {
	Owed []Delivery `json:"owed"`
	More bool       `json:"more"`
	// Next is where the next page begins; "" with the last one.
	Next string `json:"next,omitempty"`
}

// OwedPage returns at most filter.Limit deliveries, in the order in which they are sent, from behind the page that said
// after; "" is the beginning.
func (a *Service) OwedPage(ctx context.Context, filter debt.Filter, after string) (OwedPage, error) {
	var place *debt.Place
	if after != "" {
		place = new(debt.Place)
		if err := decodePlace(after, place); err != nil {
			return OwedPage{}, err
		}
		if _, err := event.ParseLSN(place.Commit); err != nil {
			return OwedPage{}, errNoPlace
		}
	}
	rows, err := a.debt().Page(ctx, filter, place, filter.Limit+1)
	if err != nil {
		return OwedPage{}, err
	}
	page := OwedPage{More: len(rows) > filter.Limit}
	if page.More {
		rows = rows[:filter.Limit]
		page.Next = encodePlace(debt.PlaceOf(rows[len(rows)-1]))
	}
	page.Owed = deliveriesOf(rows)
	return page, nil
}

// EventsPage is a part of the rows of a source.
type EventsPage struct {
	Source string     `json:"source"`
	Events []EventRow `json:"events"`
	// Next is where the next page begins; "" with the last one.
	Next string `json:"next,omitempty"`
}

// maxPageBytes ends a page before its limit where events are large.
const maxPageBytes = 4 << 20

// EventsPage returns at most limit rows of a source's table, published or not, without payload and headers, in the order in
// which a repair reads them, from behind the page that said after. A source of messages has no rows.
func (a *Service) EventsPage(ctx context.Context, source string, choice outbox.Choice, after string, limit int) (EventsPage, error) {
	page := EventsPage{Source: source, Events: []EventRow{}}
	var place outbox.Place
	if after != "" {
		if err := decodePlace(after, &place); err != nil {
			return page, err
		}
	}
	tables, err := a.tables(ctx)
	if err != nil {
		return page, err
	}
	at := slices.IndexFunc(tables, func(t *outbox.Table) bool { return t.Source.Name == source })
	if at < 0 {
		return page, debt.Refused(fmt.Sprintf("source: there is no %q with a table", source))
	}
	table := tables[at]
	if err := table.CanChoose(choice); err != nil {
		return page, debt.Refused(err.Error())
	}
	err = postgres.InTx(ctx, a.pool, func(tx pgx.Tx) error {
		last, err := table.Last(ctx, tx)
		if err != nil || last == nil {
			return err
		}
		if place != nil && len(place) != len(last) {
			return errNoPlace
		}
		rows, err := table.Page(ctx, tx, choice, place, last, limit+1, maxPageBytes)
		if err != nil {
			return err
		}
		for i, row := range rows {
			if i == limit {
				break
			}
			page.Events = append(page.Events, eventRowOf(row))
			place = row.Place
		}
		// A page that ends early has passed maxPageBytes, or is the last: an empty one follows then.
		if len(rows) > 0 && slices.CompareFunc(place, last, comparePart) != 0 {
			page.Next = encodePlace(place)
		}
		return nil
	})
	return page, err
}

// comparePart tells whether parts of a place are the same; the order of others means nothing.
func comparePart(a, b *string) int {
	if a == nil || b == nil {
		if a == b {
			return 0
		}
		return 1
	}
	if *a == *b {
		return 0
	}
	return 1
}

func eventRowOf(row outbox.PlacedRow) EventRow {
	e := row.Event
	published := row.Published
	r := EventRow{
		Source: e.Source, Occurrence: e.Occurrence, Event: e.ID, Row: e.Row, Type: e.Type, Key: e.Key, CreatedAt: e.OccurredAt,
		Published: &published, Invalid: e.Invalid,
	}
	if e.AggregateType+e.AggregateID != "" {
		r.Aggregate = e.AggregateType + "/" + e.AggregateID
	}
	return r
}

// AuditPage is a part of what was done to a slot, the newest first.
type AuditPage struct {
	Notes []store.PlacedNote `json:"notes"`
	// Before is what the next page is asked with; 0 with the last one.
	Before int64 `json:"before,omitempty"`
}

// AuditPage returns at most limit notes with numbers below before (0 is all), of these actions (none is all).
func (a *Service) AuditPage(ctx context.Context, actions []string, before int64, limit int) (AuditPage, error) {
	notes, err := store.ListNotes(ctx, a.pool, a.slot, actions, before, limit+1)
	if err != nil {
		return AuditPage{}, err
	}
	page := AuditPage{Notes: append([]store.PlacedNote{}, notes...)}
	if len(notes) > limit {
		page.Notes = page.Notes[:limit]
		page.Before = page.Notes[limit-1].ID
	}
	return page, nil
}

// SlotRecord is what the relay has recorded of its slot.
type SlotRecord struct {
	Slot
	// SystemID, Timeline and Epoch name the server that the recorded position belongs to; "" and 0 before the first start.
	SystemID string `json:"system_id,omitempty"`
	Timeline int32  `json:"timeline,omitempty"`
	Epoch    int32  `json:"epoch,omitempty"`
	Recorded string `json:"recorded_lsn,omitempty"` // up to where the relay may confirm
	// Ours is false for a slot that walpost did not make, and never drops.
	Ours bool `json:"ours"`
}

// SlotRecord looks at the slot, and at what is recorded of it.
func (a *Service) SlotRecord(ctx context.Context) (SlotRecord, error) {
	status, err := a.Status(ctx)
	if err != nil {
		return SlotRecord{}, err
	}
	s := SlotRecord{Slot: status.Slot}
	record, err := store.ReadSlotRecord(ctx, a.pool, a.slot)
	if err != nil || record == nil {
		return s, err
	}
	s.SystemID, s.Timeline, s.Epoch, s.Recorded, s.Ours = record.SystemID, record.Timeline, record.Epoch, record.Confirmed.String(), record.Ours
	return s, nil
}

// LeaderAddress returns who leads, and where the ops API of that relay answers; "" where that is not known.
func (a *Service) LeaderAddress(ctx context.Context) (holder, address string, err error) {
	return store.LeaderAddress(ctx, a.pool, a.slot)
}

const errNoPlace = debt.Refused("after: it is not what a page of this list has said as next")

func encodePlace(place any) string {
	text, _ := json.Marshal(place) // strings and numbers can always be written
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodePlace(text string, place any) error {
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, place)
	}
	if err != nil {
		return errNoPlace
	}
	return nil
}
