package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/jackc/pgx/v5"
)

const clients = 8 // that complete lessons at the same time

// writeSide compares completions over HTTP with a bare loop that does the same two statements in a
// transaction, over a pool of the same size.
func writeSide(ctx context.Context, l *lab) error {
	b := bar{what: "completions of walpost api", unit: "completions/s", baseline: "bare pgx loop", bar: 0.7}
	samples, err := l.turns(ctx, b.what,
		contestant{"walpost api", l.completeOverHTTP},
		contestant{"bare pgx loop", l.completeBare})
	if err != nil {
		return err
	}
	l.compare(b, samples[0], samples[1], rateOf)
	return nil
}

// complete has every client do one completion after the other until the time is up. No two are alike: each
// is an event.
func (l *lab) complete(ctx context.Context, one func(client int) (func(user, lesson int) error, error)) (sample, error) {
	if err := l.exec(ctx, `TRUNCATE outbox, lesson_progress`); err != nil {
		return sample{}, err
	}
	var done atomic.Int64
	cpu := ownCPU()
	errs := make([]error, clients)
	deadline := time.Now().Add(l.Timed)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			complete, err := one(client)
			for i := 0; err == nil && time.Now().Before(deadline) && ctx.Err() == nil; i++ {
				if err = complete(client*1000+i%100+1, i/100+1); err == nil {
					done.Add(1)
				}
			}
			errs[client] = err
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return sample{}, err
	}
	n := float64(done.Load())
	return sample{rate: n / l.Timed.Seconds(), cpu: float64((ownCPU() - cpu).Microseconds()) / max(1, n)}, ctx.Err()
}

func (l *lab) completeBare(ctx context.Context) (sample, error) {
	return l.complete(ctx, func(int) (func(user, lesson int) error, error) {
		return func(user, lesson int) error { return l.completeOne(ctx, user, lesson) }, nil
	})
}

// completeOne is what a service does that has nothing but the two rows to write.
func (l *lab) completeOne(ctx context.Context, user, lesson int) error {
	now := time.Now().UTC()
	id := fmt.Sprintf("bare-%d-%d", user, lesson)
	payload, err := json.Marshal(lessons.LessonCompleted{
		EventID: id, Type: lessons.TypeLessonCompleted, CorrelationID: id, OccurredAt: now,
		UserID: int64(user), LessonID: int64(lesson), TrackSlug: "go-basics", LessonSlug: "channels",
	})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO lesson_progress (user_id, lesson_id, track_slug, lesson_slug, completed, completed_at, event_id)
			VALUES ($1, $2, $3, $4, true, $5, $6)`, user, lesson, "go-basics", "channels", now, id)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload)
			VALUES ($1, $2, 'lesson', $3, $4, $5::jsonb)`,
			id, lessons.TypeLessonCompleted, strconv.Itoa(lesson), strconv.Itoa(user), string(payload))
		return err
	})
}

func (l *lab) completeOverHTTP(ctx context.Context) (sample, error) {
	args := append([]string{"run"}, l.profile()...)
	args = append(args, "--", "api", "--auth=dev", "--api-listen=127.0.0.1:0", "--log-format=json")
	api, err := l.start(ctx, []string{"WALPOST_DATABASE_URL=" + l.dsn}, args...)
	if err != nil {
		return sample{}, err
	}
	defer api.stop()
	address, err := api.says(ctx, `"url":"http://([^"]+)"`)
	if err != nil {
		return sample{}, err
	}
	before, err := api.cpu()
	if err != nil {
		return sample{}, err
	}
	s, err := l.complete(ctx, func(int) (func(user, lesson int) error, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return (&learner{conn: conn, in: bufio.NewReader(conn)}).complete, nil
	})
	if err != nil {
		return sample{}, err
	}
	after, err := api.cpu()
	s.cpu = float64((after - before).Microseconds()) / max(1, s.rate*l.Timed.Seconds())
	return s, err // with the processor time of the API in place of the learners'
}

// learner is a client that costs little: Go's own would take more of this machine than the server does.
type learner struct {
	conn net.Conn
	in   *bufio.Reader
	out  bytes.Buffer
}

func (c *learner) complete(user, lesson int) error {
	const body = `{"track_slug":"go-basics","lesson_slug":"channels"}`
	c.out.Reset()
	fmt.Fprintf(&c.out, "PUT /api/progress/lessons/%d/complete HTTP/1.1\r\nHost: localhost\r\nX-User-ID: %d\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", lesson, user, len(body), body)
	if _, err := c.conn.Write(c.out.Bytes()); err != nil {
		return fmt.Errorf("complete a lesson: %w", err)
	}
	return c.answer()
}

// answer reads one response, which must be a 200 with the length of its body in the headers.
func (c *learner) answer() error {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("complete a lesson: %w", err)
	}
	status, length := strings.TrimSpace(line), 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("complete a lesson: %w", err)
		}
		if len(line) == len("\r\n") {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return fmt.Errorf("complete a lesson: %w", err)
			}
		}
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		text, _ := io.ReadAll(io.LimitReader(c.in, int64(length))) // of an answer that is an error anyway
		return fmt.Errorf("complete a lesson: %s: %s", status, text)
	}
	if _, err := c.in.Discard(length); err != nil {
		return fmt.Errorf("complete a lesson: %w", err)
	}
	return nil
}
