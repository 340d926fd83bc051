//go:build soak

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// games are relays with a hub each, on one slot.
type games struct {
	t     *testing.T
	db    *testdb.DB
	hubs  []string // addresses, of one relay each
	n     int      // games
	moved int      // revision of each game
}

func newGames(t *testing.T, n int) *games {
	t.Helper()
	g := &games{t: t, db: testdb.New(t), n: n}
	schema, err := os.ReadFile(filepath.Join("..", "..", "deploy", "examples", "game", "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	g.db.Exec(`DROP TABLE outbox CASCADE`) // that of the reference service
	g.db.Exec(string(schema))
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		g.hubs = append(g.hubs, listener.Addr().String())
		listener.Close()
	}
	return g
}

// start starts the relay of one of the hubs.
func (g *games) start(hub int) *testprogram.Process {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf(`
sources: [{name: games, table: public.outbox, columns: {order: [aggregate_type, aggregate_id, revision]}}]
subscribers: [{name: live, kind: websocket, listen: "%s", open: true, ping: 5s, write_timeout: 5s}]
`, g.hubs[hub])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return testprogram.Start(g.t, []string{"WALPOST_DATABASE_URL=" + g.db.DSN}, "relay", "--config="+file, "--slot="+g.db.Name, "--ops-listen=127.0.0.1:0")
}

// move makes a move in every game, in one transaction.
func (g *games) move() {
	g.db.Exec(`SELECT move(n::text, 1 + n % 9, 'x') FROM generate_series(1, $1::int) n`, g.n)
	g.moved++
}

// player follows a game, and is one client however often its connection ends.
type player struct {
	games    *games
	game     int
	revision atomic.Int64
	connects int
	frozen   chan struct{} // not nil: it reads nothing until that is closed, from its tenth revision on
	cut      bool          // it cuts itself off now and then
	slow     time.Duration // between two messages
	calm     *latencies    // of the revisions 11 to 20; nil measures nothing
	stay     bool          // when it has everything it stays connected
	live     atomic.Bool   // it has been connected
}

// run follows until a revision.
func (p *player) run(ctx context.Context, until int64) error {
	for try := p.game; p.revision.Load() < until; try++ {
		err := p.follow(ctx, p.games.hubs[try%len(p.games.hubs)], until)
		if errors.Is(err, errWrong) || ctx.Err() != nil {
			return fmt.Errorf("game %d at %d of %d: %w", p.game, p.revision.Load(), until, err)
		}
		select {
		case <-time.After(time.Duration(50+rand.IntN(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

var errWrong = errors.New("what came is wrong")

func (p *player) follow(ctx context.Context, hub string, until int64) error {
	address := fmt.Sprintf("ws://%s/events?aggregate=%s&last=%d", hub, url.QueryEscape("game/"+strconv.Itoa(p.game)), p.revision.Load())
	dialing, cancel := context.WithTimeout(ctx, 10*time.Second)
	conn, _, err := websocket.Dial(dialing, address, nil) //nolint:bodyclose // the library owns it
	cancel()
	if err != nil {
		return err
	}
	defer conn.CloseNow() //nolint:errcheck // whatever it says
	p.connects++
	p.live.Store(true)
	cut := -1
	if p.cut {
		cut = rand.IntN(20)
	}
	for p.revision.Load() < until {
		_, text, err := conn.Read(ctx)
		if code := websocket.CloseStatus(err); code > 0 && code != 1012 && code != 1013 && code != 4008 {
			return fmt.Errorf("%w: closed with %d", errWrong, code)
		}
		if err != nil {
			return err
		}
		var m struct {
			Revision   int64
			OccurredAt string `json:"occurred_at"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("%w: %w", errWrong, err)
		}
		if m.Revision != p.revision.Load()+1 {
			return fmt.Errorf("%w: revision %d comes after %d", errWrong, m.Revision, p.revision.Load())
		}
		p.revision.Store(m.Revision)
		if p.calm != nil && m.Revision > 10 && m.Revision <= 20 {
			p.calm.add(m.OccurredAt)
		}
		if p.slow > 0 {
			time.Sleep(p.slow)
		}
		if p.frozen != nil && m.Revision >= 10 {
			select {
			case <-p.frozen:
			case <-ctx.Done():
			}
		}
		if cut--; cut == 0 {
			return nil
		}
	}
	if p.stay {
		_, _, _ = conn.Read(ctx) // until the test ends, or the hub sends it away
	}
	return nil
}

// latencies are those from the commit to the client.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(occurredAt string) {
	at, err := time.Parse("2006-01-02 15:04:05.999999Z07", occurredAt)
	if err != nil {
		panic(err)
	}
	took := time.Since(at)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, took)
}

func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return "none"
	}
	slices.Sort(l.all)
	at := func(share float64) time.Duration {
		return l.all[int(share*float64(len(l.all)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, longest %v of %d", at(0.5), at(0.99), at(1), len(l.all))
}

// A thousand clients follow a hundred games while clients are cut off, frozen and slow, and the relay is killed and hands
// over. No client has a gap or a revision out of order, and the frozen ones delay no other.
func TestSoak_clientsFollowGamesThroughCutsKillsAndHandovers(t *testing.T) {
	clients := scaled(t, 1000)
	g := newGames(t, max(2, scaled(t, 100)))
	handovers := rounds(t, 10)
	moves := int64(20 + 20*handovers + 20) // each phase's
	relay, at := g.start(0), 0
	relay.AwaitStreaming()

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	release := make(chan struct{})
	var calm latencies
	var players []*player
	var good []*player
	var following sync.WaitGroup
	var wrong atomic.Int64
	for i := range clients {
		p := &player{games: g, game: 1 + i%g.n}
		switch i % 10 {
		case 7:
			p.cut = true
		case 8:
			p.frozen = release
		case 9:
			p.slow = 20 * time.Millisecond
		default:
			p.calm = &calm
			good = append(good, p)
		}
		players = append(players, p)
		following.Go(func() {
			if err := p.run(ctx, moves); err != nil {
				wrong.Add(1)
				t.Error(err)
			}
		})
	}
	awaitGood := func(phase string) {
		t.Helper()
		testprogram.Within(t, 5*time.Minute, "the good clients to have everything, "+phase, func() bool {
			if wrong.Load() > 0 {
				t.FailNow()
			}
			return !slices.ContainsFunc(good, func(p *player) bool { return p.revision.Load() < int64(g.moved) })
		})
	}
	for range 10 {
		g.move()
	}
	awaitGood("before anything happens")
	// From here on a tenth of the clients is frozen: the good ones get all without them.
	for range 10 {
		g.move()
		testprogram.Pause(t, 100*time.Millisecond)
	}
	awaitGood("next to frozen ones")
	standby := g.start(1)
	standby.Await(`stand`)
	for round := range handovers {
		for range 10 {
			g.move()
			testprogram.Pause(t, randomMoment(50*time.Millisecond))
		}
		if round%2 == 0 {
			relay.Kill()
		} else {
			relay.Stop()
		}
		for range 10 { // while no one leads, and later
			g.move()
			testprogram.Pause(t, randomMoment(50*time.Millisecond))
		}
		relay, standby, at = standby, g.start(at), 1-at
		awaitGood(fmt.Sprintf("after handover %d", round+1))
	}
	close(release)
	for range 20 {
		g.move()
	}
	following.Wait()
	if got := int64(g.moved); got != moves {
		t.Errorf("%d moves were made, want %d", got, moves)
	}
	testprogram.Within(t, time.Minute, "every row to be published", func() bool {
		return g.db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0
	})
	relay.Stop()
	standby.Stop()
	connects := 0
	for _, p := range players {
		connects += p.connects
	}
	t.Logf("%d clients on %d games got %d revisions each over %d connections and %d changes of the lead; next to frozen clients, from commit to client: %s",
		clients, g.n, moves, connects, handovers, calm.String())
}

// Ten thousand clients are connected, each costs a bounded amount of memory, and all get what is sent.
func TestSoak_tenThousandClientsFollowInBoundedMemory(t *testing.T) {
	const blast = 20
	clients := scaled(t, 10_000)
	g := newGames(t, 100)
	relay := g.start(0)
	relay.AwaitStreaming()
	g.move()
	testprogram.Within(t, time.Minute, "the first move to be published", func() bool {
		return g.db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0
	})
	testprogram.Eventually(t, "the hub to take clients", func() bool {
		response, err := http.Get("http://" + g.hubs[0] + "/leader")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	before := residentBytes(t, relay.PID())

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	const steps = 20
	until := int64(1 + steps + blast)
	var steady latencies
	var following sync.WaitGroup
	var players []*player
	g.hubs = g.hubs[:1]
	for i := range clients {
		p := &player{games: g, game: 1 + i%g.n, calm: &steady, stay: true}
		p.revision.Store(1)
		players = append(players, p)
		following.Go(func() {
			if err := p.run(ctx, until); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
		if i%50 == 49 { // at a time
			testprogram.Eventually(t, "clients to connect", func() bool { return players[i-25].live.Load() })
		}
	}
	defer following.Wait()
	defer cancel()
	awaitAll := func(what string, so func(*player) bool) {
		t.Helper()
		testprogram.Within(t, 5*time.Minute, what, func() bool {
			return t.Failed() || !slices.ContainsFunc(players, func(p *player) bool { return !so(p) })
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	awaitAll("all clients to be connected", func(p *player) bool { return p.live.Load() })
	idle := residentBytes(t, relay.PID())
	for range steps {
		g.move()
		testprogram.Pause(t, time.Second)
	}
	awaitAll("all clients to have the steady moves", func(p *player) bool { return p.revision.Load() >= 1+steps })
	begun := time.Now()
	for range blast {
		g.move()
	}
	awaitAll("all clients to have everything", func(p *player) bool { return p.revision.Load() == until })
	took := time.Since(begun)
	after := residentBytes(t, relay.PID())
	connects := 0
	cancel()
	following.Wait()
	for _, p := range players {
		connects += p.connects
	}
	each := func(bytes int64) int64 { return max(0, bytes-before) / int64(clients) }
	t.Logf("%d clients on %d games over %d connections: %d kB each when idle, %d kB after %d messages; %.0f messages/s at full speed; a move in every game a second, from commit to client: %s",
		clients, g.n, connects, each(idle)>>10, each(after)>>10, clients*(steps+blast), float64(clients*blast)/took.Seconds(), steady.String())
	if clients >= 1000 && each(after) > 64<<10 {
		t.Errorf("a client takes %d bytes, the configuration counts with 65536", each(after))
	}
}

func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if kb, found := strings.CutPrefix(line, "VmRSS:"); found {
			n, err := strconv.ParseInt(strings.Fields(kb)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
