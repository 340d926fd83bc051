package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Probe asks whether Postgres answers on the way that the sessions of a pool take. It has a connection of its own,
// because all of the pool may be busy or wait for a lock. It belongs to one goroutine.
type Probe struct {
	pool *Pool
	conn *pgx.Conn
}

// NewProbe returns a probe that has not connected yet.
func (p *Pool) NewProbe() *Probe { return &Probe{pool: p} }

// Ping connects if it must, and sends an empty statement. A connection that fails is not used again.
func (p *Probe) Ping(ctx context.Context) (err error) {
	if p.conn == nil {
		config := p.pool.pool.Config() // a copy
		if config.BeforeConnect != nil {
			if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
				return err
			}
		}
		if p.conn, err = pgx.ConnectConfig(ctx, config.ConnConfig); err != nil {
			p.conn = nil
			return ConnectError(err, config.ConnString())
		}
	}
	if err := p.conn.Ping(ctx); err != nil {
		p.Close()
		return err
	}
	return nil
}

// Close ends the connection.
func (p *Probe) Close() {
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx)
	p.conn = nil
}
