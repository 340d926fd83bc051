package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/printable"
)

type topCommand struct {
	config.File
	config.Ask
	Every config.Duration `type:"duration" default:"2s" placeholder:"DURATION" help:"How often to ask the relay; at least 500ms."`
}

func (topCommand) Help() string {
	return `Examples:

  walpost top
  walpost top --ops-url http://10.0.0.7:8081

The running relay at a glance, at a terminal: who holds the slot and how long it lasts, and for each subscriber what it gets, what it is owed and what WAL it holds. It asks the ops API and needs no database.

IN is events a second, OUT deliveries and FAIL failed attempts, since the last look. OPEN is in memory, OLDEST the age of the oldest of it. WAITING and DEAD are in walpost.owed. HOLDS is WAL that the server keeps for the subscriber.

Up and down scroll, space stops the clock, q ends. For scripts: walpost status --json`
}

// Validate is called by kong.
func (c topCommand) Validate() error {
	if c.Every.Std() < 500*time.Millisecond {
		return config.Invalid(errors.New("--every: must be at least 500ms"))
	}
	return nil
}

func (c topCommand) Run(r *run) error {
	in, out := fileOf(r.Stdin), fileOf(r.Stdout)
	if !isTerminal(r.Stdin) || !isTerminal(r.Stdout) {
		return config.Invalid(errors.New("top needs a terminal: walpost status is for everything else"))
	}
	relay, err := askRelay(r, c.Ask)
	if err != nil {
		return err
	}
	defer relay.client.CloseIdleConnections()
	first := readTop(r.ctx, relay)
	if first.silent != nil {
		return first.silent // a person who named the wrong address wants to see that at once
	}
	program := tea.NewProgram(newTop(func() sight { return readTop(r.ctx, relay) }, c.Every.Std(), relay.url, first),
		tea.WithContext(r.ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	if _, err := program.Run(); err != nil && r.ctx.Err() == nil {
		return err
	}
	return nil
}

// seen is a message: top has looked again.
type seen sight

// due is a message: it is time to look.
type due struct{}

func newTop(readSight func() sight, every time.Duration, url string, first sight) top {
	return top{readSight: readSight, every: every, url: url, now: first, width: 80, height: 24}
}

// Init implements tea.Model.
func (t top) Init() tea.Cmd { return t.wait() }

func (t top) wait() tea.Cmd { return tea.Tick(t.every, func(time.Time) tea.Msg { return due{} }) }

// Update implements tea.Model.
func (t top) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		t.width, t.height = m.Width, m.Height
	case tea.KeyPressMsg:
		switch m.String() {
		case "q", "ctrl+c", "esc":
			return t, tea.Quit
		case "down", "j":
			t.skipped++
		case "up", "k":
			t.skipped--
		case "space":
			t.stopped = !t.stopped
		}
		t.skipped = max(0, min(t.skipped, len(t.now.status.Subscribers)-1))
	case due:
		if t.stopped {
			return t, t.wait()
		}
		read := t.readSight
		return t, func() tea.Msg { return seen(read()) }
	case seen:
		if t.failed = m.silent; m.silent == nil {
			t.before, t.now = t.now, sight(m)
		}
		return t, t.wait()
	}
	return t, nil
}

// View implements tea.Model.
func (t top) View() tea.View {
	view := tea.NewView(t.screen())
	view.AltScreen = true
	view.WindowTitle = "walpost top"
	return view
}

// screen is the text of the view: as many lines as the terminal has, none wider than it.
func (t top) screen() string {
	lines := t.head()
	lines = append(lines, "")
	foot := "q ends, space stops the clock, up and down scroll"
	if t.stopped {
		foot = "STOPPED, space goes on; " + foot
	}
	rows := t.rows()
	room := max(1, t.height-len(lines)-2) // without the names of the columns and the foot
	shown := rows[1:]
	skipped := max(0, min(t.skipped, len(shown)-room))
	if hidden := len(shown) - room; hidden > 0 {
		foot = fmt.Sprintf("%d of %s; ", room, printable.Count(len(shown), "subscriber")) + foot
	}
	lines = append(lines, rows[0])
	for i := skipped; i < len(shown) && i < skipped+room; i++ {
		lines = append(lines, shown[i])
	}
	lines = append(lines, foot)
	for i := range lines {
		lines[i] = cut(lines[i], t.width)
	}
	return strings.Join(lines, "\n")
}
