package cli

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/relay"
)

// sightOf is a leader with two subscribers: billing is away and owed something.
func sightOf(at time.Time, delivered uint64) sight {
	return sight{
		at: at, left: 3 * 3600, received: float64(delivered), version: "1.2.3",
		health: relay.Health{State: relay.Streaming, Problems: []string{"billing holds event 01J for 70s: connection refused"}},
		status: admin.Status{
			Slot:   admin.Slot{Name: "walpost", Exists: true, WALStatus: "reserved", LagBytes: 3 << 20, Retained: 16 << 20},
			Leader: &admin.Leader{Holder: "host/7", Term: 1765000000000},
			Subscribers: []admin.Subscriber{
				{Name: "achievements", State: admin.Live},
				{Name: "billing", State: admin.Live, Waiting: admin.Owed{Deliveries: 1234}, Dead: admin.Owed{Deliveries: 2}},
			},
		},
		progress: &relay.Progress{State: relay.Streaming, OpenEvents: 5, OpenBytes: 2048, Subscribers: []relay.Subscriber{
			{Name: "achievements", Delivered: delivered, Open: 5, OldestSince: at.Add(-2 * time.Second)},
			{Name: "billing", Failed: delivered / 100, Away: true, InDebt: true, HoldingWALBytes: 2 << 20, LastError: "dial tcp: connection refused"},
		}},
	}
}

// send gives the model a message, as the program does.
func send(t *testing.T, m tea.Model, message tea.Msg) top {
	t.Helper()
	next, _ := m.Update(message)
	return next.(top)
}

func TestTop_showsWhoIsWrongAndWhatItHolds(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	m := newTop(nil, 2*time.Second, "http://127.0.0.1:8081", sightOf(at, 1000))
	m = send(t, m, seen(sightOf(at.Add(2*time.Second), 1400)))
	screen := m.screen()
	for _, want := range []string{
		"walpost 1.2.3", "NOT READY, streaming", "slot walpost reserved", "lost in 3h", "leader host/7, term 1765000000000",
		"in 200/s  open 5", "! billing holds event 01J for 70s: connection refused",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen lacks %q:\n%s", want, screen)
		}
	}
	row := func(name string) []string {
		for line := range strings.Lines(m.screen()) {
			if strings.HasPrefix(line, name) {
				return strings.Fields(line)
			}
		}
		t.Fatalf("no line of %s:\n%s", name, m.screen())
		return nil
	}
	if got, want := strings.Join(row("achievements"), " "), "achievements live 200 0 5 2s 0 0 0 B"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := strings.Join(row("billing"), " "), "billing AWAY 0 2.0 0 - 1234 2 2 MiB"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// S-432: no line is wider than the terminal, which would break the screen, and at 80 columns no figure is cut.
func TestTop_keepsToTheTerminal(t *testing.T) {
	at := time.Now()
	now := sightOf(at, 1400)
	now.status.Subscribers[1].Name, now.progress.Subscribers[1].Name = "a-subscriber-with-a-very-long-name-课程", "a-subscriber-with-a-very-long-name-课程"
	now.health.Problems = []string{strings.Repeat("long ", 50), "\x1b[2Jsecond\nline", "third", "fourth", "fifth"}
	for _, width := range []int{40, 80, 81, 120, 200} {
		m := send(t, newTop(nil, time.Second, "", now), tea.WindowSizeMsg{Width: width, Height: 24})
		screen := m.screen()
		if strings.Contains(screen, "\x1b") {
			t.Error("what a receiver has said reaches the terminal as a command")
		}
		lines := strings.Split(screen, "\n")
		if len(lines) > 24 {
			t.Errorf("%d lines in a terminal of 24", len(lines))
		}
		for _, line := range lines {
			if got := textWidth(line); got > width {
				t.Errorf("at %d columns a line has %d: %s", width, got, line)
			}
		}
		for what, from := range map[string]int{"HOLDS": 80, "1234": 80, "2 MiB": 80, "LAST ERROR": 120, "connection refused": 120, "and 2 more": 80} {
			if width >= from && !strings.Contains(screen, what) {
				t.Errorf("at %d columns the screen lacks %q:\n%s", width, what, screen)
			}
		}
	}
}

func TestTop_scrollsStopsAndEnds(t *testing.T) {
	now := sightOf(time.Now(), 1)
	for range 40 {
		now.status.Subscribers = append(now.status.Subscribers, admin.Subscriber{Name: "s" + string(rune('a'+len(now.status.Subscribers)%26)), State: admin.Live})
	}
	looks := 0
	m := send(t, newTop(func() sight { looks++; return now }, time.Second, "", now), tea.WindowSizeMsg{Width: 80, Height: 20})
	if !strings.Contains(m.screen(), "achievements") || !strings.Contains(m.screen(), "of 42 subscribers") {
		t.Errorf("the first screen is\n%s", m.screen())
	}
	for range 60 {
		m = send(t, m, tea.KeyPressMsg{Code: tea.KeyDown})
	}
	if strings.Contains(m.screen(), "achievements") || len(strings.Split(m.screen(), "\n")) > 20 {
		t.Errorf("after the end it shows\n%s", m.screen())
	}
	m = send(t, m, tea.KeyPressMsg{Code: tea.KeySpace})
	if _, next := m.Update(due{}); next == nil || !strings.Contains(m.screen(), "STOPPED") || looks != 0 {
		t.Errorf("stopped, it has looked %d times:\n%s", looks, m.screen())
	}
	m = send(t, m, tea.KeyPressMsg{Code: tea.KeySpace})
	if _, next := m.Update(due{}); next == nil || next().(seen).version != "1.2.3" || looks != 1 {
		t.Errorf("going on, it has looked %d times", looks)
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, end := m.Update(key)
		if end == nil {
			t.Fatalf("%s does not end it", key)
		}
		if _, quits := end().(tea.QuitMsg); !quits {
			t.Errorf("%s does not end it", key)
		}
	}
}

func TestTop_goesOnWhenTheRelayIsAwayOrStandsBy(t *testing.T) {
	at := time.Now()
	m := newTop(nil, time.Second, "", sightOf(at, 1))
	m = send(t, m, seen(sight{silent: errors.New("ask the relay: connection refused")}))
	if screen := m.screen(); !strings.Contains(screen, "NO ANSWER") || !strings.Contains(screen, "connection refused") || !strings.Contains(screen, "achievements") {
		t.Errorf("away, it shows\n%s", screen)
	}
	standby := sightOf(at, 1)
	standby.progress, standby.elsewhere, standby.left = nil, "307 Temporary Redirect: this relay stands by; the leader answers at http://10.0.0.7:8081", math.Inf(1)
	m = send(t, m, seen(standby))
	if screen := m.screen(); strings.Contains(screen, "NO ANSWER") || !strings.Contains(screen, "http://10.0.0.7:8081") || !strings.Contains(screen, "never at this rate") || !strings.Contains(screen, "1234") {
		t.Errorf("at a standby, it shows\n%s", screen)
	}
	restarted := sightOf(at.Add(time.Second), 10)
	m = send(t, send(t, m, seen(sightOf(at, 1000))), seen(restarted))
	if screen := m.screen(); !strings.Contains(screen, "in -") {
		t.Errorf("after a restart, which counts from 0, it shows\n%s", screen)
	}
}
