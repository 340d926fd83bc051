// Package dispatch takes committed transactions apart and hands each event to the lanes of the
// subscribers that want it. It decides by source and type alone and it does no I/O. Bytes come from
// package wal, what they mean is told by packages pgoutput and outbox, and every event is entered in
// package ack before any lane sees it.
package dispatch

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/pgoutput"
)

// Route is a subscriber's lane and what goes to it.
type Route struct {
	Lane interface{ Offer(...*ack.Delivery) }
	// Wants is asked once for each pair of source and type, and after that from memory.
	Wants func(source, eventType string) bool
	// Earlier is what went to the subscriber before Wants did: for transactions that commit before the Until of a
	// part, the first such part is asked instead. The parts are in the order of the WAL.
	Earlier []Earlier
	// After is the position up to which the subscriber needs nothing: it has it, it owes it, or it is
	// younger than that.
	After event.Position
}

// Earlier is what a subscriber wanted of the transactions that commit below Until.
type Earlier struct {
	Until event.LSN
	Wants func(source, eventType string) bool
}

// wants reports whether an event goes to the route that commits at a place in the WAL.
func (r Route) wants(commit event.LSN, source, eventType string) bool {
	for _, part := range r.Earlier {
		if commit < part.Until {
			return part.Wants(source, eventType)
		}
	}
	return r.Wants(source, eventType)
}

// Dispatcher is the receiver of a stream. Receive and KeepAlive belong to the goroutine of the stream.
type Dispatcher struct {
	messages []*outbox.Source
	routes   []handing
	tracker  *ack.Tracker
	epoch    int32
	maxEvent int
	after    event.Position // the highest After of the routes
	earlier  event.LSN      // the highest Until of the routes' earlier parts
	log      *slog.Logger
	metrics  *Metrics

	onType     func(source, eventType string, takers int) // see OnType; never nil
	former     []Former                                   // see PassOver
	passedOver map[string]bool                            // by source: said once

	tables    []*outbox.Table
	decoder   *pgoutput.Decoder
	relations map[uint32]*binding // by oid, as the server last described them
	sources   map[string]*source
	shelf     outbox.Shelf

	begin     pgoutput.Begin // of the transaction in hand
	inside    bool           // a transaction is in hand
	known     bool           // and it was received whole before
	ordinal   int64          // of the next insert or message in it
	number    int            // of events gathered
	completed event.LSN      // commit of the last transaction received whole
	last      event.Position // of the last event taken in
}

// handing is a route, and what HandOver will offer its lane.
type handing struct {
	Route
	gathered []*ack.Delivery
}

// Former is a table that was a source. One that has got another name is known by its oid.
type Former struct {
	Source, Schema, Table string
	OID                   uint32
}

// binding is how the rows of a relation become events.
type binding struct {
	source *source
	layout *outbox.Layout
}

// source is what the dispatcher knows of a source.
type source struct {
	name     string
	received prometheus.Counter
	// Both are for rows that go to no one.
	unwanted, publishedBefore prometheus.Counter
	wanted                    map[string][]int // by type: the subscribers that want it
}

// maxKept is how large a text of an event over max_event may be to be kept: names and keys are.
const maxKept = 4096

// maxGathered is after how many events the lanes get theirs although there is more to read.
const maxGathered = 128

// maxWanted bounds the memory of answers: types come from data.
const maxWanted = 1000

// New makes a dispatcher for sources that are tables and sources of logical messages. epoch is the one of
// the server that is streamed; of an event over maxEvent bytes only the reference to its row is kept.
func New(tables []*outbox.Table, messages []*outbox.Source, routes []Route, tracker *ack.Tracker, epoch int32, maxEvent int,
	metrics *Metrics, log *slog.Logger) *Dispatcher {
	d := &Dispatcher{
		messages: messages, tracker: tracker, epoch: epoch, maxEvent: maxEvent, log: log,
		metrics:    metrics,
		onType:     func(string, string, int) {},
		passedOver: make(map[string]bool),
		sources:    make(map[string]*source),
	}
	for _, source := range messages {
		d.source(source.Name)
	}
	for _, route := range routes {
		d.routes = append(d.routes, handing{Route: route})
		if route.After.Compare(d.after) > 0 {
			d.after = route.After
		}
		for _, part := range route.Earlier {
			d.earlier = max(d.earlier, part.Until)
		}
	}
	d.Connected(tables)
	return d
}

// Connected forgets what belongs to the last connection: the server describes its relations again, and
// sends again all transactions that were not confirmed. What was taken in before is not taken in twice.
func (d *Dispatcher) Connected(tables []*outbox.Table) {
	d.tables = tables
	for _, table := range tables {
		d.source(table.Source.Name)
	}
	d.decoder = pgoutput.NewDecoder()
	d.relations = make(map[uint32]*binding)
	d.inside = false
}

// PassOver names tables that were sources: their rows are counted and passed over. Call it before the stream begins.
func (d *Dispatcher) PassOver(former []Former) { d.former = former }

// OnType has fn told of each type that comes, and how many subscribers take it: once, or a few times where there are very
// many types. Call it before the stream begins.
func (d *Dispatcher) OnType(fn func(source, eventType string, takers int)) { d.onType = fn }

// formerSource returns the name of the source that a relation was, "" if it was none.
func (d *Dispatcher) formerSource(relation *pgoutput.Relation) string {
	for _, f := range d.former {
		if f.OID == relation.ID || f.Schema == relation.Namespace && f.Table == relation.Name {
			return f.Source
		}
	}
	return ""
}

// HasRoom reports whether the window takes another event.
func (d *Dispatcher) HasRoom() bool { return d.tracker.HasRoom() }

// Room gets a token when HasRoom may have changed.
func (d *Dispatcher) Room() <-chan struct{} { return d.tracker.Room() }

// KeepAlive says that the server had nothing for us up to walEnd. Inside a transaction that says nothing.
func (d *Dispatcher) KeepAlive(walEnd event.LSN) {
	if !d.inside {
		d.tracker.Marker(walEnd)
	}
}

// Receive takes one message of the output plugin. An error ends the stream: nothing after it may be
// confirmed.
func (d *Dispatcher) Receive(data []byte) error {
	message, err := d.decoder.Decode(data)
	if err != nil {
		return err
	}
	switch m := message.(type) {
	case *pgoutput.Begin:
		d.beginTransaction(m)
	case *pgoutput.Relation:
		return d.bind(m)
	case *pgoutput.Insert:
		return d.insert(m)
	case *pgoutput.LogicalMessage:
		return d.logicalMessage(m)
	case *pgoutput.Commit:
		return d.commit(m)
	}
	// Updates, deletes and truncates of a publication that someone else made are no events; types and
	// origins say nothing that we need.
	return nil
}

// beginTransaction tells a new transaction from one that was received before the connection broke.
func (d *Dispatcher) beginTransaction(m *pgoutput.Begin) {
	d.begin, d.inside, d.ordinal = *m, true, 0
	d.known = m.FinalLSN <= d.completed
	if !d.known {
		d.tracker.Begin(m.FinalLSN)
	}
}

func (d *Dispatcher) commit(m *pgoutput.Commit) error {
	if !d.inside || m.CommitLSN != d.begin.FinalLSN {
		return fmt.Errorf("commit %v does not end transaction %v", m.CommitLSN, d.begin.FinalLSN)
	}
	d.inside = false
	if !d.known {
		d.completed = m.CommitLSN
		d.tracker.Commit(m.EndLSN)
	}
	return nil
}

// A MismatchError means that the stream brings rows which no source describes: their table has another name,
// or lacks a column. The stream speaks of the table as it was when the row was written, so that it stays a
// mismatch also when the table is corrected.
type MismatchError struct{ err error }

func (e *MismatchError) Error() string { return e.err.Error() }
func (e *MismatchError) Unwrap() error { return e.err }

// bind finds the source of a relation and the places of its columns.
func (d *Dispatcher) bind(relation *pgoutput.Relation) error {
	columns := make([]string, len(relation.Columns))
	for i, c := range relation.Columns {
		columns[i] = c.Name
	}
	for _, table := range d.tables {
		if table.Source.Table != relation.Name || table.Source.Schema != relation.Namespace {
			continue
		}
		layout, err := table.Layout(columns)
		if err != nil {
			return &MismatchError{err}
		}
		d.relations[relation.ID] = &binding{d.source(table.Source.Name), layout}
		return nil
	}
	// Only a row of it is a reason to stop: it may share a publication that someone else made.
	delete(d.relations, relation.ID)
	return nil
}

func (d *Dispatcher) insert(m *pgoutput.Insert) error {
	position, isNew := d.next()
	if !isNew {
		return nil
	}
	bound := d.relations[m.Relation.ID]
	if bound == nil {
		if source := d.formerSource(m.Relation); source != "" {
			d.passOver(source)
			return nil
		}
		table := pgx.Identifier{m.Relation.Namespace, m.Relation.Name}.Sanitize()
		return &MismatchError{fmt.Errorf("the publication brings rows of table %s, which no source names: "+
			"if the outbox was renamed, name it in the configuration or rename it back; else take it out of the publication", table)}
	}
	if bound.layout.Published(m.Values) {
		bound.source.publishedBefore.Inc()
		return nil
	}
	d.enter(bound.source, d.event(bound.layout, m.Values), position)
	return nil
}

// passOver counts a row of a table that was a source.
func (d *Dispatcher) passOver(source string) {
	if !d.passedOver[source] {
		d.passedOver[source] = true
		d.log.Warn("rows of a table that was a source are passed over: no subscriber gets them, and they stay in their table; "+
			"name the source again to have the unpublished ones sent, or take the table out of the publication", "source", source)
	}
	d.metrics.passedOver.WithLabelValues(source).Inc()
}

// event makes an event of a row. The bytes of one that is too large pass through memory once and are not
// kept: it becomes a dead letter that says how large it is, and points to its row.
func (d *Dispatcher) event(layout *outbox.Layout, values [][]byte) *event.Event {
	size := 0
	for _, value := range values {
		size += len(value)
	}
	if size <= d.maxEvent {
		return layout.EventOn(&d.shelf, values)
	}
	ev := layout.Large(values, maxKept)
	ev.Invalid = fmt.Sprintf("the event has %d bytes, max_event is %d; its payload was not kept and stands in its row", size, d.maxEvent)
	return ev
}

// logicalMessage takes a message of a source without a table. Only transactional ones are events: others
// come before their transaction, and from one that is rolled back too.
func (d *Dispatcher) logicalMessage(m *pgoutput.LogicalMessage) error {
	if !m.Transactional {
		d.metrics.ignoredMessages.Inc()
		return nil
	}
	position, isNew := d.next()
	if !isNew {
		return nil
	}
	for _, source := range d.messages {
		if source.Messages == string(m.Prefix) {
			ev := source.EventFromMessage(m.Content)
			ev.Limit(d.maxEvent)
			d.enter(d.source(source.Name), ev, position)
			return nil
		}
	}
	d.metrics.ignoredMessages.Inc() // another program's
	return nil
}

// next counts an insert or message and tells whether it was not taken in before. The ordinal counts all
// of them, wanted or not, so that it stays the same when filters change.
func (d *Dispatcher) next() (event.Position, bool) {
	position := event.Position{Epoch: d.epoch, Commit: d.begin.FinalLSN, Ordinal: d.ordinal}
	d.ordinal++
	return position, !d.known && (d.last == event.Position{} || position.Compare(d.last) > 0)
}

// enter adds an event to the tracker and to what the lanes are offered next.
func (d *Dispatcher) enter(from *source, ev *event.Event, position event.Position) {
	ev.Source, ev.Position, ev.CommittedAt, ev.XID = from.name, position, d.begin.CommitTime, d.begin.XID
	d.last = position
	from.received.Inc()
	wanted := d.want(from, ev.Type)
	if len(wanted) == 0 {
		from.unwanted.Inc()
	}
	needed := d.needed(ev, wanted)
	entry := d.tracker.Add(ev, needed, len(needed) < len(wanted))
	deliveries := entry.Deliveries()
	for i := range deliveries {
		route := &d.routes[deliveries[i].Subscriber()]
		route.gathered = append(route.gathered, &deliveries[i])
	}
	if d.number++; d.number == maxGathered {
		d.HandOver()
	}
}

// HandOver offers the lanes what was gathered. One at a time each event would wake a worker of each lane;
// so the stream gathers as long as there is something to read without a wait, and the lanes work on what
// came before meanwhile.
func (d *Dispatcher) HandOver() {
	if d.number == 0 {
		return
	}
	d.number = 0
	for i := range d.routes {
		if route := &d.routes[i]; len(route.gathered) > 0 {
			route.Lane.Offer(route.gathered...)
			clear(route.gathered)
			route.gathered = route.gathered[:0]
		}
	}
}

// source returns what is known of a source. It makes an empty entry for a source that it has not met yet.
func (d *Dispatcher) source(name string) *source {
	from := d.sources[name]
	if from == nil {
		from = &source{
			name: name, received: d.metrics.received.WithLabelValues(name), wanted: make(map[string][]int),
			unwanted:        d.metrics.undelivered.WithLabelValues(name, unwanted),
			publishedBefore: d.metrics.undelivered.WithLabelValues(name, publishedBefore),
		}
		d.metrics.passedOver.WithLabelValues(name) // it stands at 0 before its table can leave
		d.sources[name] = from
	}
	return from
}

// want returns the numbers of the subscribers that want events of a type. Before the last change of a filter that
// depends on where the transaction commits, so nothing is remembered.
func (d *Dispatcher) want(from *source, eventType string) []int {
	if d.begin.FinalLSN < d.earlier {
		var wanted []int
		for i, route := range d.routes {
			if route.wants(d.begin.FinalLSN, from.name, eventType) {
				wanted = append(wanted, i)
			}
		}
		return wanted
	}
	wanted, ok := from.wanted[eventType]
	if !ok {
		for i, route := range d.routes {
			if route.Wants(from.name, eventType) {
				wanted = append(wanted, i)
			}
		}
		if len(from.wanted) >= maxWanted {
			clear(from.wanted)
		}
		// The string belongs to the event, whose memory must not be kept for it.
		eventType = strings.Clone(eventType)
		from.wanted[eventType] = wanted
		d.onType(from.name, eventType, len(wanted))
	}
	return wanted
}

// needed leaves out those that are past the event: they have or owe it from an earlier process.
func (d *Dispatcher) needed(ev *event.Event, wanted []int) []int {
	if ev.Position.Compare(d.after) > 0 {
		return wanted
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(i int) bool {
		return ev.Position.Compare(d.routes[i].After) <= 0
	})
}
