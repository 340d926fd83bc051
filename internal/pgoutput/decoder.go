package pgoutput

import (
	"fmt"

	"github.com/backendstart/walpost/internal/event"
)

// A Decoder reads the messages of one replication connection: it remembers the relations that the server
// described, because a row only names their ids. Start a new one with each connection. It belongs to one
// goroutine.
type Decoder struct {
	relations map[uint32]*Relation

	// Reused for each message, so that a row costs no allocation.
	begin    Begin
	commit   Commit
	insert   Insert
	update   Update
	delete   Delete
	truncate Truncate
	typ      Type
	origin   Origin
	logical  LogicalMessage
}

// NewDecoder returns a decoder that knows no relation yet, as at the start of a connection.
func NewDecoder() *Decoder {
	return &Decoder{relations: make(map[uint32]*Relation)}
}

// Decode reads one message: the data of one XLogData frame. The message and its slices are valid until
// the next call and point into data; copy what outlives it.
//
// An error names the message's letter and the offset. The stream cannot be understood beyond it, so the
// caller stops: nothing after an error may be confirmed.
func (d *Decoder) Decode(data []byte) (Message, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("decode pgoutput message: no bytes")
	}
	r := reader{data: data, at: 1}
	message := d.decode(data[0], &r)
	if r.wrong == "" && r.at < len(data) {
		r.fail("%d bytes left over", len(data)-r.at)
	}
	if r.wrong != "" {
		return nil, fmt.Errorf("decode pgoutput message %q at byte %d: %s", data[0], r.at, r.wrong)
	}
	if relation, ok := message.(*Relation); ok {
		d.relations[relation.ID] = relation // only now that it is known to be whole
	}
	return message, nil
}

func (d *Decoder) decode(letter byte, r *reader) Message {
	switch letter {
	case 'B':
		d.begin = Begin{FinalLSN: r.lsn(), CommitTime: r.time(), XID: r.uint32()}
		return &d.begin
	case 'C':
		r.byte() // flags, none defined
		d.commit = Commit{CommitLSN: r.lsn(), EndLSN: r.lsn(), CommitTime: r.time()}
		return &d.commit
	case 'R':
		return decodeRelation(r)
	case 'I':
		d.insert.Relation = d.relation(r)
		r.expect("N")
		d.insert.Values = r.row(d.insert.Relation, d.insert.Values[:0])
		return &d.insert
	case 'U':
		d.update.Relation = d.relation(r)
		if r.peek() != 'N' {
			r.expect("KO")
			r.skipTuple(d.update.Relation)
		}
		r.expect("N")
		r.skipTuple(d.update.Relation)
		return &d.update
	case 'D':
		d.delete.Relation = d.relation(r)
		r.expect("KO")
		r.skipTuple(d.delete.Relation)
		return &d.delete
	case 'T':
		n := r.uint32()
		r.byte() // options: CASCADE, RESTART IDENTITY
		r.bytes(4 * int64(n))
		return &d.truncate
	case 'Y':
		d.typ = Type{ID: r.uint32()}
		r.cstring() // schema
		r.cstring() // name
		return &d.typ
	case 'O':
		d.origin = Origin{LSN: r.lsn(), Name: r.cstring()}
		return &d.origin
	case 'M':
		d.logical = LogicalMessage{
			Transactional: r.byte()&1 != 0,
			LSN:           r.lsn(),
			Prefix:        r.cstring(),
			Content:       r.bytes(int64(r.uint32())),
		}
		return &d.logical
	}
	r.at = 0
	r.fail("unknown type of message; this walpost speaks protocol version 1 and must be upgraded to read more")
	return nil
}

// relation reads the id that a row begins with.
func (d *Decoder) relation(r *reader) *Relation {
	id := r.uint32()
	relation := d.relations[id]
	if relation == nil {
		r.fail("relation %d was not described before its row", id)
	}
	return relation
}

func decodeRelation(r *reader) *Relation {
	relation := &Relation{
		ID:              r.uint32(),
		Namespace:       string(r.cstring()),
		Name:            string(r.cstring()),
		ReplicaIdentity: r.byte(),
	}
	if relation.Namespace == "" {
		relation.Namespace = "pg_catalog" // how the protocol abbreviates it
	}
	n := int(r.uint16())
	const smallest = 1 + 1 + 4 + 4 // flags, an empty name, type, modifier
	if r.wrong != "" || n*smallest > len(r.data)-r.at {
		r.fail("%d columns do not fit into %d bytes", n, len(r.data)-r.at)
		return nil
	}
	relation.Columns = make([]Column, n)
	for i := range relation.Columns {
		relation.Columns[i] = Column{
			Key:      r.byte()&1 != 0,
			Name:     string(r.cstring()),
			Type:     r.uint32(),
			Modifier: int32(r.uint32()),
		}
	}
	return relation
}

// row appends the values of a new row. The server sends an insert whole: an unchanged value, which only
// an update can leave out, or a binary one, which no one asked for, means that we do not understand it.
func (r *reader) row(relation *Relation, values [][]byte) [][]byte {
	if !r.columns(relation) {
		return values
	}
	for i := range relation.Columns {
		switch kind := r.byte(); kind {
		case 'n':
			values = append(values, nil)
		case 't':
			values = append(values, r.bytes(int64(r.uint32())))
		default:
			r.fail("column %q of %s.%s: value of kind %q in a new row", relation.Columns[i].Name, relation.Namespace, relation.Name, kind)
		}
		if r.wrong != "" {
			return values
		}
	}
	return values
}

// skipTuple walks over a row that no event can come from.
func (r *reader) skipTuple(relation *Relation) {
	if !r.columns(relation) {
		return
	}
	for range relation.Columns {
		switch kind := r.byte(); kind {
		case 'n', 'u':
		case 't':
			r.bytes(int64(r.uint32()))
		default:
			r.fail("value of kind %q", kind)
		}
		if r.wrong != "" {
			return
		}
	}
}

// columns reads the number of values and compares it with the relation's.
func (r *reader) columns(relation *Relation) bool {
	n := int(r.uint16())
	if r.wrong == "" && n != len(relation.Columns) {
		r.fail("%d values for the %d columns of %s.%s", n, len(relation.Columns), relation.Namespace, relation.Name)
	}
	return r.wrong == ""
}

func (r *reader) lsn() event.LSN { return event.LSN(r.uint64()) }
