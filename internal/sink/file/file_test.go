package file_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/backendstart/walpost/internal/sink/file"
	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
)

// onDisk is a file in a folder of its own.
type onDisk struct {
	folder, format string
}

func (d *onDisk) PartlyAbsent() {}
func (d *onDisk) path() string  { return filepath.Join(d.folder, "events.ndjson") }

func (d *onDisk) Open(t *testing.T) subscriber.Subscriber {
	f, err := file.New(file.Options{Name: "archive", Path: d.path(), Format: d.format})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (d *onDisk) Received(t *testing.T) []sinktest.Received {
	content, err := os.ReadFile(d.path())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return received(t, content)
}

// Down takes the folder away, as a disk that is not mounted.
func (d *onDisk) Down(t *testing.T) { rename(t, d.folder, d.folder+".away") }
func (d *onDisk) Up(t *testing.T)   { rename(t, d.folder+".away", d.folder) }

func rename(t *testing.T, from, to string) {
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// Stall holds the lock of the file, as another relay does that hangs.
func (d *onDisk) Stall(t *testing.T) func() {
	held, err := os.OpenFile(d.path(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = held.Close() }
}

// received reads lines of either format.
func received(t *testing.T, content []byte) []sinktest.Received {
	t.Helper()
	var all []sinktest.Received
	for text := range strings.Lines(string(content)) {
		var line map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("line %q: %v", text, err)
		}
		word := func(names ...string) (word string) {
			for _, name := range names {
				if line[name] != nil {
					_ = json.Unmarshal(line[name], &word)
				}
			}
			return word
		}
		r := sinktest.Received{ID: word("id"), Key: word("key", "partitionkey")}
		switch {
		case line["payload_text"] != nil, word("datacontenttype") == "text/plain":
			r.Body = []byte(word("payload_text", "data"))
		case line["payload_base64"] != nil, line["data_base64"] != nil:
			body, err := base64.StdEncoding.DecodeString(word("payload_base64", "data_base64"))
			if err != nil {
				t.Fatal(err)
			}
			r.Body = body
		case line["data"] != nil:
			r.Body = line["data"]
		default:
			r.Body = line["payload"]
			// In an object SQL NULL and JSON null are both null: a reader that must tell them apart takes CloudEvents.
			if string(r.Body) == "null" && !strings.HasSuffix(r.ID, "1") {
				r.Body = nil
			}
		}
		all = append(all, r)
	}
	return all
}

// F-42, F-46, F-49: id, key and bytes are the same at each attempt, whatever stands in them.
func TestFile_keepsTheContract(t *testing.T) {
	for _, format := range []string{file.NDJSON, file.CloudEvents} {
		t.Run(format, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Destination {
				d := &onDisk{folder: filepath.Join(t.TempDir(), "disk"), format: format}
				if err := os.Mkdir(d.folder, 0o700); err != nil {
					t.Fatal(err)
				}
				return d
			})
		})
	}
}

func open(t *testing.T, o file.Options) *file.File {
	t.Helper()
	o.Name = "archive"
	f, err := file.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestFile_cutsALineThatACrashHasTorn(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for name, test := range map[string]struct{ before, kept string }{
		"at the end":           {`{"id":"1"}` + "\n" + `{"id":"2", "pay`, `{"id":"1"}` + "\n"},
		"the only line":        {`{"id":"2", "pay`, ``},
		"longer than one read": {`{"id":"1"}` + "\n" + `{"id":"` + long, `{"id":"1"}` + "\n"},
		"nothing":              {`{"id":"1"}` + "\n", `{"id":"1"}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events")
			write(t, path, test.before)
			if err := open(t, file.Options{Path: path}).Handle(t.Context(), sinktest.Delivery(3)); err != nil {
				t.Fatal(err)
			}
			rest, ok := strings.CutPrefix(read(t, path), test.kept)
			if !ok || strings.Count(rest, "\n") != 1 || !strings.Contains(rest, sinktest.Delivery(3).ID) {
				t.Errorf("the file is %.300q", read(t, path))
			}
		})
	}
}

// A path that leads to a file of someone else by mistake costs that file nothing.
func TestFile_leavesAFileAloneThatIsNotItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	const notes = "remember\nthe milk"
	write(t, path, notes)
	f := open(t, file.Options{Path: path})
	if err := f.Handle(t.Context(), sinktest.Delivery(1)); !subscriber.IsAway(err) || !strings.Contains(err.Error(), "none of walpost's") {
		t.Errorf("got %v", err)
	}
	if err := f.Probe(t.Context()); err == nil {
		t.Error("the probe has nothing to say")
	}
	if got := read(t, path); got != notes {
		t.Errorf("the file is %q", got)
	}
}

func TestFile_rotatesBetweenBatches(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "events")
	f := open(t, file.Options{Path: path, Rotate: 2000})
	var sent []string
	for n := range 30 {
		d := sinktest.Delivery(n)
		sent = append(sent, d.ID)
		if err := f.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(path + ".*")
	if err != nil || len(names) < 3 {
		t.Fatalf("rotated files: %q, %v", names, err)
	}
	var got []string
	for _, name := range append(names, path) { // their names are in the order of time
		content := read(t, name)
		if len(content) > 2000 {
			t.Errorf("%s has %d bytes", name, len(content))
		}
		for _, r := range received(t, []byte(content)) {
			got = append(got, r.ID)
		}
	}
	if !slices.Equal(got, sent) {
		t.Errorf("the files have %q, want %q", got, sent)
	}
}

// Two relays, and logrotate, which renames the file under them.
func TestFile_sharesTheFileWithOthers(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "events")
	var all sync.WaitGroup
	for writer := range 3 {
		f := open(t, file.Options{Path: path, Rotate: 20_000})
		all.Go(func() {
			for n := range 40 {
				batch := []subscriber.Delivery{sinktest.Delivery(writer*1000 + 2*n), sinktest.Delivery(writer*1000 + 2*n + 1)}
				if err := f.HandleBatch(t.Context(), batch); err != nil {
					t.Errorf("writer %d: %v", writer, err)
				}
				if writer == 0 && n%10 == 5 {
					_ = os.Rename(path, fmt.Sprintf("%s.logrotate-%d", path, n))
				}
			}
		})
	}
	all.Wait()
	names, _ := filepath.Glob(path + "*")
	ids := make(map[string]bool)
	for _, name := range names {
		for _, r := range received(t, []byte(read(t, name))) {
			if ids[r.ID] {
				t.Errorf("%s stands there twice", r.ID)
			}
			ids[r.ID] = true
		}
	}
	if len(ids) != 3*80 {
		t.Errorf("%d events in %d files, want %d", len(ids), len(names), 3*80)
	}
}

// A full disk leaves no half batch behind, and is Away.
func TestFile_waitsForAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	f := open(t, file.Options{Path: path})
	if err := f.Handle(t.Context(), sinktest.Delivery(0)); err != nil {
		t.Fatal(err)
	}
	before := read(t, path)
	var batch []subscriber.Delivery
	for n := range 20 {
		batch = append(batch, sinktest.Delivery(n+1))
	}
	limitFileSize(t, uint64(len(before))+1000, func() {
		if err := f.HandleBatch(t.Context(), batch); !subscriber.IsAway(err) {
			t.Errorf("got %v, want Away", err)
		}
	})
	if got := read(t, path); got != before {
		t.Errorf("the file has %d bytes, want the %d from before", len(got), len(before))
	}
	if err := f.HandleBatch(t.Context(), batch); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
	if got := len(received(t, []byte(read(t, path)))); got != 21 {
		t.Errorf("%d lines, want 21", got)
	}
}

func TestFile_refusesMistakesInItsOptions(t *testing.T) {
	for _, test := range []struct {
		o    file.Options
		want string
	}{
		{file.Options{}, "path: is missing"}, {file.Options{Path: "events"}, "is not absolute"}, {file.Options{Path: "/tmp/x", Format: "xml"}, `"xml" is none of`},
	} {
		if _, err := file.New(test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want %q", test.o, err, test.want)
		}
	}
	if err := open(t, file.Options{Path: "/dev/null"}).Handle(t.Context(), sinktest.Delivery(1)); !subscriber.IsAway(err) || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a device: got %v", err)
	}
}

// pipe is standard output with a reader that comes and goes.
type pipe struct {
	mu      sync.Mutex
	arrived []byte        // guarded by mu
	down    bool          // guarded by mu
	stalled chan struct{} // closed when the reader reads again; guarded by mu
}

func (p *pipe) PartlyAbsent() {}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	stalled := p.stalled
	p.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return 0, syscall.EPIPE
	}
	p.arrived = append(p.arrived, b...)
	return len(b), nil
}

func (p *pipe) Open(t *testing.T) subscriber.Subscriber {
	s, err := file.NewStdout("out", "", file.Options{}.Envelope, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *pipe) Received(t *testing.T) []sinktest.Received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return received(t, p.arrived)
}

func (p *pipe) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *pipe) Down(*testing.T) { p.set(true) }
func (p *pipe) Up(*testing.T)   { p.set(false) }

func (p *pipe) Stall(*testing.T) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = make(chan struct{})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.stalled)
		p.stalled = nil
	}
}

// F-46, F-49
func TestStdout_keepsTheContract(t *testing.T) {
	sinktest.Run(t, func(*testing.T) sinktest.Destination { return &pipe{} })
}

// tearing writes a part of what it gets, once.
type tearing struct {
	lines []byte
	tore  bool
}

func (w *tearing) Write(b []byte) (int, error) {
	if !w.tore {
		w.tore = true
		w.lines = append(w.lines, b[:10]...)
		return 10, io.ErrShortWrite
	}
	w.lines = append(w.lines, b...)
	return len(b), nil
}

func TestStdout_endsALineThatWasTorn(t *testing.T) {
	out := &tearing{}
	s, err := file.NewStdout("out", "", file.Options{}.Envelope, out)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Handle(context.Background(), sinktest.Delivery(1)); !subscriber.IsAway(err) {
		t.Errorf("got %v, want Away", err)
	}
	if err := s.Handle(context.Background(), sinktest.Delivery(1)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out.lines), "\n")
	if len(lines) != 3 || len(lines[0]) != 10 || !strings.Contains(lines[1], sinktest.Delivery(1).ID) {
		t.Errorf("got %q", lines)
	}
}
