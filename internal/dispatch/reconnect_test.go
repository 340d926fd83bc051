package dispatch_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/event"
)

// sent is a transaction as the server sends it.
type sent struct {
	commit, end event.LSN
	frames      [][]byte
}

// stream has transactions of one event, of many, of none, of messages, and of what is no event.
func stream() (transactions []sent, ids []string) {
	bodies := [][][]byte{
		{row("a")},
		{row("b"), row("c"), rowOf("published", "x", "2026-07-01"), row("d")},
		{},
		{message(true, "walpost", `{"id": "e", "type": "x"}`), row("f"), message(true, "another", "x"), row("g")},
		{rowOf("published too", "x", "2026-07-01")},
		{row("h"), row("i")},
	}
	for i, body := range bodies {
		x := sent{commit: event.LSN(i*16 + 8), end: event.LSN(i*16 + 16)}
		x.frames = append(x.frames, begin(x.commit, uint32(501+i)), outboxRelation())
		x.frames = append(x.frames, body...)
		x.frames = append(x.frames, commit(x.commit, x.end))
		transactions = append(transactions, x)
	}
	return transactions, []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
}

// resent returns the frames that the server sends to one that has confirmed an LSN: transactions whose
// commit record begins there or later, whole and from their first row.
func resent(transactions []sent, confirmed event.LSN) [][]byte {
	var frames [][]byte
	for _, x := range transactions {
		if x.commit >= confirmed {
			frames = append(frames, x.frames...)
		}
	}
	return frames
}

// The connection breaks at each place, and there again at each later one, with nothing finished before
// the break or with everything.
func TestDispatcher_takesNothingTwiceAndLosesNothingWhereverTheConnectionBreaks(t *testing.T) {
	transactions, ids := stream()
	all := resent(transactions, 0)
	for first := range len(all) + 1 {
		for second := range len(all) + 1 {
			for _, finishing := range []bool{false, true} {
				name := fmt.Sprintf("breaks after %d frames and again after %d, finishing %v", first, second, finishing)
				r := newRig(t, func(_, eventType string) bool { return eventType == "x" })
				var confirmed event.LSN
				for _, cut := range []int{first, second, len(all)} {
					r.Connected(r.tables)
					frames := resent(transactions, confirmed)
					r.receive(frames[:min(cut, len(frames))]...)
					if finishing {
						confirmed = r.finish()
					}
				}
				if got := r.everything.ids(); !slices.Equal(got, ids) {
					t.Fatalf("%s:\n got %v\nwant %v", name, got, ids)
				}
				if got, want := r.some.at(), []string{"e@0"}; !slices.Equal(got, want) {
					t.Fatalf("%s: who wants one type got %v, want %v", name, got, want)
				}
				if got, want := r.finish(), transactions[len(transactions)-1].end; got != want {
					t.Fatalf("%s: confirmed %v in the end, want %v", name, got, want)
				}
			}
		}
	}
}

func TestDispatcher_keepsPositionsOverAReconnect(t *testing.T) {
	transactions, _ := stream()
	straight := newRig(t, nothing)
	straight.receive(resent(transactions, 0)...)
	broken := newRig(t, nothing)
	all := resent(transactions, 0)
	for n := range len(all) + 1 {
		broken.Connected(broken.tables)
		broken.receive(all[:n]...)
	}
	for i, d := range broken.everything.deliveries {
		if got, want := d.Event.Position, straight.everything.deliveries[i].Event.Position; got != want {
			t.Errorf("%s: got %v, want %v", d.Event.ID, got, want)
		}
	}
}

// While the server sends a broken-off transaction again, a keepalive says nothing about it.
func TestDispatcher_aKeepaliveAfterAReconnectConfirmsNothingOfABrokenTransaction(t *testing.T) {
	r := newRig(t, nothing)
	r.receive(begin(8, 501), outboxRelation(), row("a"))
	r.Connected(r.tables)
	r.KeepAlive(100)
	if got := r.finish(); got != 0 {
		t.Errorf("confirmed %v, want nothing: the rest of the transaction has not come", got)
	}
	r.receive(begin(8, 501), outboxRelation(), row("a"), row("b"), commit(8, 16))
	if got, want := r.everything.at(), []string{"a@0", "b@1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := r.finish(); got != 16 {
		t.Errorf("confirmed %v, want 16", got)
	}
}

// A transaction that is sent again is not begun a second time, but what comes inside of it is inside.
func TestDispatcher_aKeepaliveInsideATransactionThatIsSentAgainSaysNothing(t *testing.T) {
	r := newRig(t, nothing)
	r.receive(begin(8, 501), outboxRelation(), row("a"), commit(8, 16))
	r.Connected(r.tables)
	r.receive(begin(8, 501), outboxRelation())
	r.KeepAlive(100)
	r.receive(row("a"), commit(8, 16))
	if got := r.finish(); got != 16 {
		t.Errorf("confirmed %v, want 16: what follows the transaction has not come", got)
	}
}

// Another server's relations have other numbers: what was known of the last connection is forgotten.
func TestDispatcher_forgetsRelationsOfTheLastConnection(t *testing.T) {
	r := newRig(t, nothing)
	r.receive(begin(8, 501), outboxRelation(), row("a"), commit(8, 16))
	r.Connected(r.tables)
	r.receive(begin(24, 502))
	if err := r.Receive(row("b")); err == nil {
		t.Error("a row whose relation this connection has not described was taken")
	}
}
