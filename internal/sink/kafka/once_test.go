package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// another is a second process with the same name and slot.
func another(t *testing.T, first *Kafka) *Kafka {
	t.Helper()
	k, err := New(first.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func transactional(t *testing.T) (*kfake.Cluster, *Kafka) {
	t.Helper()
	cluster, k := fake(t, nil)
	k.ExactlyOnce = true
	return cluster, k
}

func numbered(numbers ...int) (all []subscriber.Delivery) {
	for _, n := range numbers {
		d := delivery(n, fmt.Sprint(n%3), fmt.Sprint(n))
		d.Position = event.Position{Epoch: 1, Commit: event.LSN(8 * n)}
		all = append(all, d)
	}
	return all
}

// committed are the values that a consumer gets who reads what is committed.
func committed(t *testing.T, cluster *kfake.Cluster) (values []string) {
	t.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	end := cluster.PartitionInfo("t", 0).HighWatermark
	for last := int64(-1); last < end-1; {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if last = r.Offset; !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}

func mustSend(t *testing.T, k *Kafka, all ...subscriber.Delivery) {
	t.Helper()
	for i, err := range outcome(t, t.Context(), k, all...) {
		if err != nil {
			t.Fatalf("event %s: %v", all[i].ID, err)
		}
	}
}

// S-370. A relay is killed when Kafka has committed and Postgres does not know: the next one is given the same events, from the
// stream and from a debt, and sends those alone that are not there.
func TestKafka_sendsNothingAgainThatIsCommitted(t *testing.T) {
	cluster, first := transactional(t)
	mustSend(t, first, numbered(1, 2, 3)...)
	owed := numbered(4)
	owed[0].Owed = true
	mustSend(t, first, owed...)
	second := another(t, first)
	mustSend(t, second, numbered(1, 2, 3, 4, 5)...)
	third := another(t, second) // what the second skipped may come once more
	mustSend(t, third, numbered(1, 2, 3, 4, 5, 6)...)
	if got, want := committed(t, cluster), []string{"1", "2", "3", "4", "5", "6"}; !slices.Equal(got, want) {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
	// An id that comes again with another occurrence is another event, and a person may want one again.
	other := numbered(1)
	other[0].Occurrence = "later"
	again := numbered(2)
	again[0].Replay = true
	mustSend(t, another(t, third), append(other, again...)...)
	if got := committed(t, cluster); !slices.Equal(got[6:], []string{"1", "2"}) {
		t.Errorf("then a consumer gets %q", got[6:])
	}
}

// S-371. The answer to a commit is lost: no one knows whether it counts, and the events are sent once all the same.
func TestKafka_findsOutWhetherACommitWithoutAnAnswerCounts(t *testing.T) {
	cluster, k := transactional(t)
	mustSend(t, k, numbered(1)...)
	another, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	var first atomic.Bool
	cluster.ControlKey(int16(kmsg.EndTxn), func(request kmsg.Request) (kmsg.Response, error, bool) {
		if cluster.KeepControl(); first.Swap(true) {
			return nil, nil, false
		}
		end := *request.(*kmsg.EndTxnRequest)
		answered := make(chan error, 1)
		cluster.SleepControl(func() {
			_, err := end.RequestWith(t.Context(), another)
			answered <- err
		})
		answer := end.ResponseKind().(*kmsg.EndTxnResponse)
		answer.ErrorCode = kerr.UnknownServerError.Code
		return answer, <-answered, true
	})
	lost := outcome(t, t.Context(), k, numbered(2, 3)...)
	for _, err := range lost {
		if err == nil || subscriber.IsPermanent(err) {
			t.Fatalf("got %v, want an error that is tried again", err)
		}
	}
	mustSend(t, k, numbered(2, 3, 4)...)
	if got, want := committed(t, cluster), []string{"1", "2", "3", "4"}; !slices.Equal(got, want) {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
}

// S-372. What is recorded is not read again at the next start, and what is not recorded stays within reach.
func TestKafka_readsBackNoMoreThanIsNotRecorded(t *testing.T) {
	cluster, k := transactional(t)
	mustSend(t, k, numbered(1, 2)...)
	noted := func() int64 {
		offsets, err := k.now.admin.FetchOffsets(t.Context(), k.transactionalID())
		if err != nil {
			t.Fatal(err)
		}
		o, _ := offsets.Lookup("t", 0)
		return o.At
	}
	if got := noted(); got != 0 {
		t.Errorf("the place is %d when nothing is recorded, want 0", got)
	}
	time.Sleep(stretchOf)
	mustSend(t, k, numbered(3)...)
	k.Recorded(event.Position{Epoch: 1, Commit: 16}, event.Position{Epoch: 1, Commit: 16})
	for begun := time.Now(); noted() != 3; time.Sleep(50 * time.Millisecond) { // two records and the end of their transaction
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("the place is %d, want 3", noted())
		}
	}
	mustSend(t, another(t, k), numbered(3, 4)...)
	if got, want := committed(t, cluster), []string{"1", "2", "3", "4"}; !slices.Equal(got, want) {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
}

// S-373. Who may write to the topic cannot keep an event from it, by writing a record that looks like ours.
func TestKafka_believesNoForeignRecord(t *testing.T) {
	cluster, k := transactional(t)
	mustSend(t, k, numbered(1)...)
	d := numbered(2)[0]
	for _, id := range []string{"", "another"} {
		opts := []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
		if id != "" {
			opts = append(opts, kgo.TransactionalID(id))
		}
		forger, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		if id != "" {
			err = forger.BeginTransaction()
		}
		err = errors.Join(err, forger.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("forged"), Headers: []kgo.RecordHeader{headerOf(&d, "t")}}).FirstErr())
		if id != "" {
			err = errors.Join(err, forger.EndTransaction(t.Context(), kgo.TryCommit))
		}
		if err != nil {
			t.Fatal(err)
		}
		forger.Close()
	}
	mustSend(t, another(t, k), numbered(1, 2)...)
	if got, want := committed(t, cluster), []string{"1", "forged", "forged", "2"}; !slices.Equal(got, want) {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
}

// S-374. A partition that no one can read when a leader begins holds up its own events alone. When it is back, what was
// committed there does not come again.
func TestKafka_readsBackAPartitionWhenItIsThereAgain(t *testing.T) {
	cluster, k := transactional(t)
	if err := cluster.CreateTopic("well", 1, nil); err != nil {
		t.Fatal(err)
	}
	mustSend(t, k, numbered(1, 2)...)
	away := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets, kmsg.Produce, kmsg.Fetch}, Topic: "t", Err: kerr.NotLeaderForPartition, Count: -1})
	o := k.Options
	c := *o.Config
	c.Topic, o.Config, o.Timeout = "{topic}", &c, 2*time.Second
	second, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Close() })
	to := func(topic string, numbers ...int) (all []subscriber.Delivery) {
		for _, d := range numbered(numbers...) {
			d.Topic = topic
			all = append(all, d)
		}
		return all
	}
	mustSend(t, second, to("well", 11, 12)...)
	away.Remove()
	begun := time.Now()
	for left := to("t", 1, 2, 3); len(left) > 0 && time.Since(begun) < 30*time.Second; {
		var again []subscriber.Delivery
		for i, err := range outcome(t, t.Context(), second, left...) {
			if err != nil {
				again = append(again, left[i])
			}
		}
		left = again
	}
	if got, want := committed(t, cluster), []string{"1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("a consumer gets %q, want %q", got, want)
	}
}

// S-372
func TestTrail_keepsThePlaceOfWhatIsNotRecorded(t *testing.T) {
	a, b := partition{"t", 0}, partition{"t", 1}
	at := func(n int) string { return event.Position{Epoch: 1, Commit: event.LSN(8 * n)}.String() }
	now := time.Unix(0, 0)
	trail := newTrail()
	noteAll := func(all ...sent) { trail.notePlaces(trail.unnoted(all, 7)) }
	commit := func(all ...sent) { noteAll(all...); trail.add(all, false, now); now = now.Add(stretchOf) }
	want := func(what string, places map[partition]place, want map[partition]int64) {
		t.Helper()
		got := map[partition]int64{}
		for p, of := range places {
			got[p] = of.at
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	commit(sent{a, 10, at(1), false}, sent{a, 9, at(2), false})
	commit(sent{a, 11, at(3), false}, sent{b, 5, at(4), false})
	commit(sent{b, 6, at(3), true}) // of a debt
	want("noted", trail.noted, map[partition]int64{a: 9, b: 5})
	want("nothing is recorded", trail.behind(), map[partition]int64{})
	upTo := func(commit event.LSN) { trail.advance(event.Position{Epoch: 1, Commit: commit}, event.Position{}) }
	upTo(16)
	trail.forget(now)
	want("up to 2", trail.behind(), map[partition]int64{a: 11})
	upTo(32)
	trail.forget(now)
	want("all of the stream", trail.behind(), map[partition]int64{a: 12, b: 6})
	now = now.Add(owedFor)
	trail.forget(now)
	want("and the debt for long", trail.behind(), map[partition]int64{a: 12, b: 7})
	trail.notePlaces(trail.behind())
	if places := trail.unnoted([]sent{{a, 12, at(9), false}}, 8); fmt.Sprint(places[a].producers) != "[7 8]" || places[a].at != 12 {
		t.Errorf("with another producer id %v", places)
	}
	if got := placeOf(a.offsetOf(place{12, []int64{7, 8}})); got.at != 12 || !slices.Equal(got.producers, []int64{7, 8}) {
		t.Errorf("read back: %v", got)
	}
	// Of what was reported too late the lane may have made a debt: that is not over when the stream is past it.
	trail.add([]sent{{a, 13, at(10), false}}, true, now)
	upTo(80)
	trail.forget(now)
	if want("suspect and perhaps owed", trail.behind(), map[partition]int64{a: 13}); trail.resolved() {
		t.Error("it is taken for recorded")
	}
	now = now.Add(owedFor)
	trail.forget(now)
	if want("the same for long", trail.behind(), map[partition]int64{a: 14}); trail.resolved() {
		t.Error("then this session forgets it too")
	}
	trail.advance(event.Position{Epoch: 1, Commit: 80}, event.Position{Epoch: 1, Commit: 80})
	if !trail.resolved() {
		t.Error("it is kept when nothing is owed")
	}
	for range 100 {
		commit(slices.Repeat([]sent{{a, 20, at(3), true}}, owedInHand/10)...)
		trail.forget(now)
	}
	if trail.size > 2*owedInHand {
		t.Errorf("%d records of a debt are kept in mind", trail.size)
	}
}

func TestKafka_namesTheGroupWhosePlacesItMayNotKeep(t *testing.T) {
	cluster, k := transactional(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	err := outcome(t, t.Context(), k, numbered(1)...)[0]
	if !subscriber.IsAway(err) || !strings.Contains(err.Error(), "walpost/s/payments") || !strings.Contains(err.Error(), "GROUP_AUTHORIZATION_FAILED") {
		t.Errorf("got %v", err)
	}
	if got := committed(t, cluster); len(got) != 0 {
		t.Errorf("committed all the same: %q", got)
	}
}
