package relay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// serverError is what the server says when it ends the stream. Two that are equal mean that it cannot send what
// comes next: another try changes nothing.
type serverError struct {
	code, message string
	at            event.LSN // of the row in the WAL, as far as the server tells it
	received      event.LSN // how far the stream came
}

// serverErrorOf takes the server's error out of the end of a stream; the zero value is for any other end. Errors of a
// server that stops, or of an administrator, say nothing about the WAL.
func serverErrorOf(err error, received event.LSN) serverError {
	var said *pgconn.PgError
	if !errors.As(err, &said) || strings.HasPrefix(said.Code, "57") || strings.HasPrefix(said.Code, "08") {
		return serverError{}
	}
	s := serverError{code: said.Code, message: said.Message, received: received}
	// slot "…", output plugin "pgoutput", in the change callback, associated LSN 0/1A2B3C
	if _, text, ok := strings.Cut(said.Where, "associated LSN "); ok {
		text, _, _ = strings.Cut(text, "\n")
		if at, err := event.ParseLSN(strings.TrimSpace(text)); err == nil {
			s.at = at
		}
	}
	return s
}

// problem says what the server cannot send, where, and the way out.
func (s serverError) problem(o Options) string {
	at := s.at
	if at == 0 {
		at = s.received
	}
	text := fmt.Sprintf("the server cannot send what stands at %v of the WAL: %s (SQLSTATE %s). Nothing behind it comes. The way out is a repair: "+
		"%s; walpost then makes the slot again and sends every "+
		"unpublished row from the table, and a row with a value that it needs and cannot read becomes a dead letter", at, s.message, s.code, advice.DropSlot(o.Slot))
	if len(o.messageSources()) > 0 {
		text += "; messages have no table, so those in between are lost"
	}
	return text
}
