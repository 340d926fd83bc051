package docs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"
)

// What docs/writing-events.md shows in Go stands here, is compiled, compared with the page and run.

type OrderPaid struct {
	OrderID int64       `json:"order_id"`
	Total   json.Number `json:"total"`
}

// PayOrder pays an order and says so, or does neither.
func PayOrder(ctx context.Context, pool *pgxpool.Pool, orderID int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// The change comes first: it locks the order before the outbox row draws its id.
		var total string
		err := tx.QueryRow(ctx, `
			UPDATE orders SET status = 'paid' WHERE id = $1 AND status <> 'paid'
			RETURNING total::text`, orderID).Scan(&total)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // paid before: nothing happened, so there is no event
		}
		if err != nil {
			return fmt.Errorf("pay order %d: %w", orderID, err)
		}
		payload, err := json.Marshal(OrderPaid{OrderID: orderID, Total: json.Number(total)})
		if err != nil {
			return fmt.Errorf("pay order %d: %w", orderID, err)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload)
			VALUES ($1, 'order.paid', 'order', $2, $2, $3::jsonb)`,
			ulid.Make().String(), strconv.FormatInt(orderID, 10), string(payload))
		if err != nil {
			return fmt.Errorf("pay order %d: write event: %w", orderID, err)
		}
		return nil
	})
}

// PayOrderSQL does the same through database/sql.
func PayOrderSQL(ctx context.Context, db *sql.DB, orderID int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("pay order %d: %w", orderID, err)
	}
	defer tx.Rollback() // does nothing after the commit

	var total string
	err = tx.QueryRowContext(ctx, `
		UPDATE orders SET status = 'paid' WHERE id = $1 AND status <> 'paid'
		RETURNING total::text`, orderID).Scan(&total)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // paid before: nothing happened, so there is no event
	}
	if err != nil {
		return fmt.Errorf("pay order %d: %w", orderID, err)
	}
	payload, err := json.Marshal(OrderPaid{OrderID: orderID, Total: json.Number(total)})
	if err != nil {
		return fmt.Errorf("pay order %d: %w", orderID, err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload)
		VALUES ($1, 'order.paid', 'order', $2, $2, $3::jsonb)`,
		ulid.Make().String(), strconv.FormatInt(orderID, 10), string(payload))
	if err != nil {
		return fmt.Errorf("pay order %d: write event: %w", orderID, err)
	}
	return tx.Commit()
}
