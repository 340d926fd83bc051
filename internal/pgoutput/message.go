// Package pgoutput turns the bytes of Postgres' built-in output plugin into messages, protocol version 1
// (PostgreSQL manual, "Logical Replication Message Formats"). It does no I/O, keeps no bytes and knows
// nothing about outboxes. The bytes come from package wal; what becomes of a row is told in package outbox.
package pgoutput

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// A Message is one of the pointer types of this package: *Begin, *Commit, *Relation, *Insert, *Update,
// *Delete, *Truncate, *Type, *Origin or *LogicalMessage.
//
// All but *Relation belong to the decoder and are valid until its next call; their byte slices point
// into the data that was decoded.
type Message interface{ message() }

// Begin opens a transaction. Transactions arrive whole, one after the other, in commit order.
type Begin struct {
	// FinalLSN is the start of the transaction's commit record; Commit repeats it as CommitLSN.
	FinalLSN   event.LSN
	CommitTime time.Time // UTC, by the clock of the server
	XID        uint32
}

// Commit closes a transaction.
type Commit struct {
	CommitLSN event.LSN
	// EndLSN is the end of the commit record: what may be confirmed once the transaction is secured.
	EndLSN     event.LSN
	CommitTime time.Time // UTC, by the clock of the server
}

// Relation describes a table before its first row, and again after it changed.
//
// It is never reused: a new description of the same id is a new Relation, so that code that keeps one can
// tell by comparing pointers whether what was derived from it still holds.
type Relation struct {
	ID              uint32
	Namespace, Name string
	// ReplicaIdentity is 'd' (primary key), 'n' (nothing), 'f' (whole row) or 'i' (an index).
	ReplicaIdentity byte
	// Columns are in the order of the values of every row. Columns that are not published, generated ones
	// among them before Postgres 18, are missing.
	Columns []Column
}

// Column is a published column of a Relation.
type Column struct {
	Name     string
	Type     uint32 // oid of the type
	Modifier int32  // atttypmod, -1 for none
	Key      bool   // part of the replica identity
}

// Insert is a new row.
type Insert struct {
	Relation *Relation
	// Values has the text of each column of Relation; nil is SQL NULL, an empty text is not nil.
	Values [][]byte
}

// Update says that a row changed. Its values are checked and not kept.
type Update struct{ Relation *Relation }

// Delete says that a row went. Its values are checked and not kept.
type Delete struct{ Relation *Relation }

// Truncate says that tables were emptied. Which ones is not kept.
type Truncate struct{}

// Type names a data type that is not built in, before the Relation that uses it. Its name is not kept.
type Type struct{ ID uint32 }

// Origin says that the transaction came from another server by logical replication.
type Origin struct {
	LSN  event.LSN // of the commit on that server
	Name []byte
}

// LogicalMessage is what pg_logical_emit_message wrote.
type LogicalMessage struct {
	// Transactional messages stand inside the transaction that emitted them. Others come at once, even
	// from a transaction that is rolled back.
	Transactional bool
	LSN           event.LSN
	Prefix        []byte
	Content       []byte
}

func (*Begin) message()          {}
func (*Commit) message()         {}
func (*Relation) message()       {}
func (*Insert) message()         {}
func (*Update) message()         {}
func (*Delete) message()         {}
func (*Truncate) message()       {}
func (*Type) message()           {}
func (*Origin) message()         {}
func (*LogicalMessage) message() {}
