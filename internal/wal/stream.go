package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// Receiver takes what the stream brings. All its methods but Room are called by the goroutine of Stream.
type Receiver interface {
	// Receive takes one message of the output plugin. The bytes are valid only during the call.
	Receive(message []byte) error
	// KeepAlive says that the server has read its WAL up to walEnd and had nothing more for us.
	KeepAlive(walEnd event.LSN)
	// HandOver is called before the stream waits for anything: what Receive has gathered must go on now.
	HandOver()
	// HasRoom reports whether another message may be received; Room gets a token when that may have
	// changed.
	HasRoom() bool
	Room() <-chan struct{}
}

// Confirmer knows what the server may forget. Confirmed never goes back.
type Confirmer interface {
	Confirmed() event.LSN
	// Pending reports whether Confirmed can be expected to move soon.
	Pending() bool
}

// StreamOptions say what to read and how.
type StreamOptions struct {
	Slot, Publication string
	// Prefixes are those of the sources' logical messages. Messages with others may come without their content.
	Prefixes []string
	// Confirmed is where the slot stands: no lower position is ever told.
	Confirmed event.LSN
	Receiver  Receiver
	Confirmer Confirmer
	// Drained is closed when nothing will be confirmed any more. After ctx has ended, the stream reads
	// nothing more but keeps the connection alive until then, and confirms once more.
	Drained <-chan struct{}
	// OutOfTime is closed when a stop must wait for nothing any more, neither for Drained nor for the server;
	// nil is never.
	OutOfTime <-chan struct{}
	// Alive asks by SQL whether the server still serves our connection. It is asked after a silence,
	// because a server that decodes a giant transaction says nothing for minutes.
	Alive func(ctx context.Context, pid uint32) bool
	// Told is called when the server was told a higher position than before. It must return at once; nil tells no one.
	Told     func(upTo event.LSN)
	Log      *slog.Logger
	Progress *Progress
}

// ErrShutdown means that the server wants to stop and waits for us to leave.
var ErrShutdown = errors.New("the server is shutting down")

// ErrConnection means that the connection broke and can be made again.
var ErrConnection = errors.New("replication connection lost")

const (
	// movedInterval is how often a confirmed LSN that moves is told.
	movedInterval = 200 * time.Millisecond
	// answerInterval is the least time between two answers to a server that asks. A stopping server asks
	// again at once, tens of thousands of times a second.
	answerInterval = 100 * time.Millisecond
	// statusInterval is a third of the wal_sender_timeout that the session is pinned to.
	statusInterval = 10 * time.Second / 3
	// lastAnswer is how long the server has to answer when the time for a stop is over.
	lastAnswer = 100 * time.Millisecond
	// silence is after how long without a byte the server is asked by SQL: after a wal_sender_timeout, when it
	// would have given us up too.
	silence = 10 * time.Second
)

// Stream reads the slot, after Start, until ctx ends, the server stops or something breaks. It returns nil after a
// clean end: the last status was sent and the server has answered.
func (c *Conn) Stream(ctx context.Context, o StreamOptions) error {
	now := time.Now()
	c.messages.prefixes = o.Prefixes
	s := &stream{StreamOptions: o, conn: c, net: c.stream.Conn, readAt: now, traffic: traffic{counted: now},
		sent: o.Confirmed, lastStatus: now, lastHeard: now, probed: now, timer: time.NewTimer(0)}
	// A read that waits is woken by the end of ctx. What comes after the reading sets deadlines of its
	// own, so it waits until the waking is over.
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = s.net.SetReadDeadline(time.Unix(1, 0))
	})
	s.Progress.noteHeard(now)
	err := s.read(ctx)
	s.handOver()
	if !stop() {
		<-woken
	}
	switch {
	case errors.Is(err, ErrShutdown):
		_ = s.leave() // the server goes away whatever it answers
		return err
	case err != nil:
		return postgres.Mask(fmt.Errorf("read slot %q: %w", o.Slot, err), c.dsn)
	}
	if err := s.drain(); err != nil {
		return postgres.Mask(fmt.Errorf("end stream of slot %q: %w", o.Slot, err), c.dsn)
	}
	return nil
}

// stream is the state of the goroutine that owns the connection while it reads.
type stream struct {
	StreamOptions
	conn *Conn
	net  net.Conn // of conn

	readAt   time.Time // when the last read has ended, or waitForRoom; for this loop it is what time it is
	traffic  traffic
	pace     pace
	gathered int           // bytes that came since emptied
	slept    time.Duration // of the time since then
	emptied  time.Time     // when a read has last left nothing behind, or the reading was held up; zero: that says nothing of the server

	sent             event.LSN // last position told
	lastStatus       time.Time // when it was told
	lastHeard        time.Time // when a message last arrived
	probed           time.Time // when the server was last asked by SQL, or heard
	deadline         time.Time // of the socket
	timer            *time.Timer
	asked            bool      // the server wants a status
	lastReplyRequest time.Time // when the server last asked
	replyRequests    int       // requests for a status that came right after one
}

// read is the loop of the relay's life: read what is there, take its messages as long as there is room, hand over what
// they brought, tell the status when it is due. It returns nil when ctx has ended.
func (s *stream) read(ctx context.Context) error {
	for {
		if err := s.takeMessages(ctx); err != nil {
			return err
		}
		s.handOver()
		if ctx.Err() != nil {
			return nil
		}
		if err := s.sendStatusIfDue(s.readAt); err != nil {
			return err
		}
		if err := s.askIfSilent(ctx, s.readAt); err != nil {
			return err
		}
		s.setDeadline(s.readAt)
		if ctx.Err() != nil { // it may have ended just before the deadline was set
			return nil
		}
		s.gather()
		n, full, err := s.conn.receive()
		s.readAt = time.Now()
		s.noteRead(n, full)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.deadline = time.Time{}
		case err != nil:
			return fmt.Errorf("%w: %w", ErrConnection, err)
		}
	}
}

// gather lets the server fill the socket for as long as that brings more with less work. What a full read has left behind
// is taken first.
func (s *stream) gather() {
	if s.gathered > 0 {
		return
	}
	wait := s.pace.next(s.traffic.longestWait())
	if wait == 0 {
		return
	}
	begun := time.Now()
	// Unseen: the runtime would be woken for each packet.
	setLowWater(s.conn.socket.Conn, minBuffer)
	sleep(wait)
	setLowWater(s.conn.socket.Conn, 1)
	s.slept = time.Since(begun)
}

// noteRead keeps the books of a read that brought n bytes, and perhaps had room for no more.
func (s *stream) noteRead(n int, full bool) {
	s.traffic.judge(s.readAt)
	s.gathered += n
	overfull := full && s.gathered >= maxBuffer
	if full && !overfull || n == 0 {
		return
	}
	if s.traffic.longestWait() > 0 && !s.emptied.IsZero() {
		s.pace.noteRead(s.gathered, s.readAt.Sub(s.emptied), s.slept, overfull)
	}
	s.gathered, s.slept, s.emptied = 0, 0, s.readAt
}

// takeMessages handles every whole message that was read. While there is no room for one it reads nothing and keeps the
// connection alive.
func (s *stream) takeMessages(ctx context.Context) error {
	for {
		for !s.Receiver.HasRoom() {
			s.handOver()
			s.waitForRoom(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err := s.sendStatusIfDue(s.readAt); err != nil {
				return err
			}
		}
		m, ok, err := s.conn.messages.next()
		if err != nil || !ok {
			return err
		}
		if err := s.handleMessage(m); err != nil {
			return err
		}
	}
}

// handOver lets what was received go on, and only then says so.
func (s *stream) handOver() {
	s.Receiver.HandOver()
	s.Progress.noteHandedOver()
}

// handleMessage handles one message of the server. (PostgreSQL manual, "Message Formats")
func (s *stream) handleMessage(m message) error {
	switch m.kind {
	case 'd': // CopyData
		if s.readAt != s.lastHeard {
			s.lastHeard, s.probed = s.readAt, s.readAt
			s.Progress.noteHeard(s.readAt)
		}
		s.traffic.count++
		return s.takeCopyData(m.body, s.readAt)
	case 'E':
		err := serverError(m.body)
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.SeverityUnlocalized == "FATAL" {
			return fmt.Errorf("%w: %w", ErrConnection, err) // the session ends, and not for what we asked
		}
		return fmt.Errorf("stream: %w", explainSlotError(s.Slot, err))
	case 'N':
		var notice pgproto3.NoticeResponse
		if err := notice.Decode(m.body); err != nil {
			return fmt.Errorf("notice: %w", err)
		}
		s.conn.noteNotice((*pgconn.Notice)(pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&notice))))
		return s.checkSkipped()
	case 'S': // ParameterStatus
		return s.checkSkipped()
	case 'c', 'C', 'Z': // CopyDone, CommandComplete, ReadyForQuery
		return fmt.Errorf("%w: the server ended the stream", ErrConnection)
	default:
		return fmt.Errorf("unexpected message %q in the stream", m.kind)
	}
}

// serverError is what an ErrorResponse says.
func serverError(body []byte) error {
	var response pgproto3.ErrorResponse
	if err := response.Decode(body); err != nil {
		return fmt.Errorf("error message: %w", err)
	}
	return pgconn.ErrorResponseToPgError(&response)
}

// checkSkipped stops before anything more is confirmed when Postgres 18 only warns that it goes on
// without the publication.
func (s *stream) checkSkipped() error {
	if s.conn.skipped == nil {
		return nil
	}
	return fmt.Errorf("%w: the server goes on without publication %q: %s", ErrMissing, s.Publication, s.conn.skipped.Message)
}

// beginCommitTime is where the commit time stands in a Begin message of pgoutput, behind its letter and the
// final LSN. It is looked at here because both clocks are the server's.
const beginCommitTime = 1 + 8

// takeCopyData reads the frames of the replication protocol.
// (PostgreSQL manual, "Streaming Replication Protocol", START_REPLICATION)
func (s *stream) takeCopyData(data []byte, now time.Time) error {
	if len(data) == 0 {
		return errors.New("empty frame in the stream")
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		const header = 1 + 8 + 8 + 8 // letter, start, end, server time
		if len(data) < header {
			return fmt.Errorf("data frame of %d bytes", len(data))
		}
		s.Progress.noteReceived(event.LSN(binary.BigEndian.Uint64(data[1:])))
		if len(data) > header+beginCommitTime+8 && data[header] == 'B' {
			committed := binary.BigEndian.Uint64(data[header+beginCommitTime:])
			sent := binary.BigEndian.Uint64(data[header-8:])
			s.traffic.behind = time.Duration(sent-committed)*time.Microsecond > behind
		}
		return s.Receiver.Receive(data[header:])
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		const size = 1 + 8 + 8 + 1 // letter, end, server time, reply requested
		if len(data) < size {
			return fmt.Errorf("keepalive frame of %d bytes", len(data))
		}
		walEnd := event.LSN(binary.BigEndian.Uint64(data[1:]))
		s.Progress.noteReceived(walEnd)
		s.Receiver.KeepAlive(walEnd)
		if data[size-1] == 0 {
			return nil
		}
		s.asked = true
		// A server that runs asks only after half a wal_sender_timeout without a status. One that asks
		// right after it was told twice is stopping and waits for us to confirm all WAL, which we cannot.
		if now.Sub(s.lastStatus) > time.Second || now.Sub(s.lastReplyRequest) > time.Minute {
			s.replyRequests = 0
		}
		s.lastReplyRequest = now
		if now.Sub(s.lastStatus) > time.Second {
			return nil
		}
		if s.replyRequests++; s.replyRequests >= 2 {
			return ErrShutdown
		}
		return nil
	default:
		return fmt.Errorf("unknown frame %q in the stream", data[0])
	}
}

// sendStatusIfDue sends the status when the server asked, when the confirmed LSN moved, or when it is time.
func (s *stream) sendStatusIfDue(now time.Time) error {
	since := now.Sub(s.lastStatus)
	switch {
	case s.asked && since >= answerInterval,
		since >= statusInterval,
		since >= movedInterval && s.Confirmer.Confirmed() > s.sent:
		// Without a request the server sends no keepalive while it reads WAL that is not for us, and
		// the position would stand still for gigabytes.
		return s.sendStatus(now, s.lastHeard.Before(s.lastStatus))
	}
	return nil
}

// sendStatus sends the status now. All three positions are the same: they say what was handled, and nothing less can be
// told of events. (PostgreSQL manual, "Streaming Replication Protocol", Standby status update)
func (s *stream) sendStatus(now time.Time, wantReply bool) error {
	before := s.sent
	s.sent = max(before, s.Confirmer.Confirmed())
	// By a clock that is read now: after a pause of the process the last read may be long ago.
	_ = s.net.SetWriteDeadline(time.Now().Add(statusInterval))
	s.conn.stream.Frontend.Send(&pgproto3.CopyData{Data: appendStatus(nil, s.sent, now, wantReply)})
	if err := s.conn.stream.Frontend.Flush(); err != nil {
		return fmt.Errorf("%w: send status: %w", ErrConnection, err)
	}
	s.lastStatus, s.asked = now, false
	s.Progress.noteConfirmed(s.sent)
	if s.Told != nil && s.sent > before {
		s.Told(s.sent)
	}
	return nil
}

// appendStatus appends a standby status update: letter, position written, flushed and applied, clock, reply requested.
func appendStatus(to []byte, position event.LSN, now time.Time, wantReply bool) []byte {
	to = append(to, pglogrepl.StandbyStatusUpdateByteID)
	for range 3 {
		to = binary.BigEndian.AppendUint64(to, uint64(position))
	}
	to = binary.BigEndian.AppendUint64(to, uint64(now.Sub(postgresEpoch).Microseconds()))
	if wantReply {
		return append(to, 1)
	}
	return append(to, 0)
}

// postgresEpoch is where the server's clocks begin.
var postgresEpoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// nextStatus is when sendStatusIfDue may next have something to do.
func (s *stream) nextStatus() time.Time {
	switch {
	case s.asked:
		return s.lastStatus.Add(answerInterval)
	case s.Confirmer.Pending():
		return s.lastStatus.Add(movedInterval)
	default:
		return s.lastStatus.Add(statusInterval)
	}
}

// nextLook is nextStatus, but not in the past: the position may be expected to move and not do so for long.
func (s *stream) nextLook(now time.Time) time.Time {
	next := s.nextStatus()
	if next.Before(now) {
		next = now.Add(movedInterval)
	}
	return next
}

// setDeadline lets the next read end when a status is due. Setting a deadline costs more than reading a
// message that is there, so one that is early enough stays.
func (s *stream) setDeadline(now time.Time) {
	next := s.nextLook(now)
	if now.Before(s.deadline) && !next.Before(s.deadline) {
		return
	}
	s.deadline = next
	_ = s.net.SetReadDeadline(next)
}

// waitForRoom waits, without reading, for the window, the next status or the end.
func (s *stream) waitForRoom(ctx context.Context) {
	s.timer.Reset(time.Until(s.nextLook(time.Now())))
	select {
	case <-s.Receiver.Room():
	case <-s.timer.C:
	case <-ctx.Done():
	}
	s.timer.Stop()
	// What the server sent meanwhile waits in the socket: that is no silence.
	s.readAt = time.Now()
	s.probed, s.emptied = s.readAt, time.Time{}
	s.Progress.noteHeard(s.probed)
}

// askIfSilent finds a dead line behind a silence, and only then gives the connection up.
func (s *stream) askIfSilent(ctx context.Context, now time.Time) error {
	if now.Sub(s.probed) < silence {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusInterval)
	defer cancel()
	if !s.Alive(ctx, s.conn.stream.PID) {
		return fmt.Errorf("%w: nothing heard for %v and the server does not serve this connection any more", ErrConnection, now.Sub(s.lastHeard))
	}
	// Why, only the server knows: it may decode a large transaction, or be suspended. What it shows of itself is
	// watched by package relay.
	s.Log.Info("the server sends nothing, and its session is there", "since", s.lastHeard)
	s.probed = time.Now()
	return nil
}

// drain keeps the connection alive until nothing will be confirmed any more, then leaves.
func (s *stream) drain() error {
	_ = s.net.SetReadDeadline(time.Time{})
	for {
		timer := time.NewTimer(time.Until(s.nextLook(time.Now())))
		select {
		case <-s.Drained:
			timer.Stop()
			return s.leave()
		case <-s.OutOfTime:
			timer.Stop()
			return s.leave()
		case <-timer.C:
		}
		if err := s.sendStatusIfDue(time.Now()); err != nil {
			return err
		}
	}
}

// leave sends the last status, ends the copy and waits for the server's answer: then the position is
// known to have arrived.
func (s *stream) leave() error {
	now := time.Now()
	if err := s.sendStatus(now, false); err != nil {
		return err
	}
	_ = s.net.SetDeadline(now.Add(statusInterval))
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		select {
		case <-s.OutOfTime:
			_ = s.net.SetDeadline(time.Now().Add(lastAnswer))
		case <-answered:
		}
	}()
	s.conn.stream.Frontend.Send(&pgproto3.CopyDone{})
	if err := s.conn.stream.Frontend.Flush(); err != nil {
		return fmt.Errorf("%w: end copy: %w", ErrConnection, err)
	}
	for {
		m, ok, err := s.conn.messages.next()
		if err == nil && !ok {
			_, _, err = s.conn.receive()
		}
		switch {
		case err != nil:
			return fmt.Errorf("%w: wait for the end of the copy: %w", ErrConnection, err)
		case m.kind == 'Z': // ReadyForQuery
			return nil
		case m.kind == 'E':
			return fmt.Errorf("wait for the end of the copy: %w", serverError(m.body))
		}
	}
}
