// Package file appends events to a file or to standard output, one line of JSON each. A batch is one write and, in a file,
// one fsync; only then is it delivered. It never changes what stands in the file but for a last line that was torn by a
// crash, and never takes a file for its own whose last line is none of JSON. docs/destinations.md is the page for users.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Formats of a line.
const (
	// NDJSON is an object with the event's names and its payload.
	NDJSON = "ndjson"
	// CloudEvents is a CloudEvent in its JSON format.
	CloudEvents = "cloudevents"
)

// Options say where to and how. Problems tells what is wrong with them.
type Options struct {
	// Name is the subscriber's identity.
	Name string
	// Path is the file; it is made if it is not there, its folder is not.
	Path string
	// Format is one of the formats above; "" is NDJSON.
	Format string
	// Rotate is how large the file may become before it gets another name and a new one begins; 0 is for ever.
	Rotate   int64
	Envelope envelope.Writer
}

// Problem is a mistake in the options.
type Problem struct {
	Key string // of the subscriber in the configuration
	Err error
}

// Problems tells all mistakes at once. It looks at no file.
func (o Options) Problems() []Problem {
	var problems []Problem
	if o.Path == "" {
		problems = append(problems, Problem{"path", errors.New("is missing: the file that events are appended to")})
	} else if !filepath.IsAbs(o.Path) {
		problems = append(problems, Problem{"path", fmt.Errorf("%q is not absolute: it would depend on where the relay is started", o.Path)})
	}
	return append(problems, formatProblems(o.Format)...)
}

func formatProblems(format string) []Problem {
	if format == "" || format == NDJSON || format == CloudEvents {
		return nil
	}
	return []Problem{{"format", fmt.Errorf("%q is none of %s, %s", format, NDJSON, CloudEvents)}}
}

// File is a subscriber that appends to a file. Its calls take turns. Several processes may append to one file: each batch
// holds a lock on it.
type File struct {
	Options
	turn chan struct{} // holds one token while no call is at the file

	// Owned by who holds the token.
	file *os.File // nil until the first call, and after a failure
	size int64    // of the file after our last write, -1 for not known
}

// New makes the subscriber. It opens nothing: that the folder is away is no reason not to start.
func New(o Options) (*File, error) {
	for _, problem := range o.Problems() {
		return nil, fmt.Errorf("%s: %w", problem.Key, problem.Err)
	}
	f := &File{Options: o, turn: make(chan struct{}, 1), size: -1}
	f.turn <- struct{}{}
	return f, nil
}

// Name implements subscriber.Subscriber.
func (f *File) Name() string { return f.Options.Name }

// Wants implements subscriber.Subscriber: which events go where is a matter of configuration.
func (f *File) Wants(string) bool { return true }

// Handle appends one line.
func (f *File) Handle(ctx context.Context, d subscriber.Delivery) error {
	return f.HandleBatch(ctx, []subscriber.Delivery{d})
}

// HandleBatch appends a line for each delivery: all of them, or none. Whatever is wrong with the disk says nothing of the
// events: each error is Away.
func (f *File) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	lines := appendLines(nil, f.Envelope, f.Format, deliveries)
	select {
	case <-f.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { f.turn <- struct{}{} }()
	if err := f.append(ctx, lines); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return subscriber.Away(fmt.Errorf("append to %s: %w", f.Path, err))
	}
	return nil
}

func appendLines(to []byte, w envelope.Writer, format string, deliveries []subscriber.Delivery) []byte {
	for _, d := range deliveries {
		begin := len(to)
		if format == CloudEvents {
			to = w.AppendCloudEvent(to, d.Event)
		} else {
			to = w.AppendObject(to, d.Event)
		}
		// A payload of type json keeps its line breaks, which in JSON stand between tokens alone.
		for i, b := range to[begin:] {
			if b == '\n' || b == '\r' {
				to[begin+i] = ' '
			}
		}
		to = append(to, '\n')
	}
	return to
}

func (f *File) append(ctx context.Context, lines []byte) (err error) {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.forget()
			return
		}
		_ = syscall.Flock(int(f.file.Fd()), syscall.LOCK_UN)
	}()
	if err := f.ready(); err != nil {
		return err
	}
	if f.Rotate > 0 && f.size > 0 && f.size+int64(len(lines)) > f.Rotate {
		if err := f.rotate(ctx); err != nil {
			return err
		}
	}
	if _, err := f.file.Write(lines); err != nil {
		// Half a batch must not stay: its retry would write it again.
		return errors.Join(err, f.file.Truncate(f.size))
	}
	if err := f.file.Sync(); err != nil {
		return errors.Join(err, f.file.Truncate(f.size))
	}
	f.size += int64(len(lines))
	return nil
}

// lock opens the file at the path and locks it. Another process may have renamed it meanwhile, or something else has.
func (f *File) lock(ctx context.Context) error {
	for {
		if f.file == nil {
			if err := f.open(); err != nil {
				return err
			}
		}
		if err := flock(ctx, f.file); err != nil {
			f.forget()
			return err
		}
		ours, err := f.file.Stat()
		if err != nil {
			f.forget()
			return err
		}
		if there, err := os.Stat(f.Path); err == nil && os.SameFile(ours, there) {
			return nil
		}
		f.forget()
	}
}

func (f *File) open() error {
	info, err := os.Stat(f.Path)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	file, err := os.OpenFile(f.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.file, f.size = file, -1
	if isNew {
		return syncFolder(f.Path)
	}
	return nil
}

// flock waits for the lock, which another process holds for one batch.
func flock(ctx context.Context, file *os.File) error {
	const every = 10 * time.Millisecond
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process holds its lock: %w", context.Cause(ctx))
		case <-time.After(every):
		}
	}
}

// ready learns the size and cuts a last line that a crash has torn. A file that we know has the size that we left.
func (f *File) ready() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == f.size {
		return nil
	}
	end, err := endOfLines(f.file, info.Size())
	if err != nil {
		return err
	}
	if end < info.Size() {
		if err := f.file.Truncate(end); err != nil {
			return err
		}
	}
	f.size = end
	return nil
}

// endOfLines is where the last whole line ends. What stands behind it was torn, and begins as each line of ours does.
func endOfLines(file *os.File, size int64) (int64, error) {
	const step = 64 << 10
	end := size
	var last byte // the first byte behind the line end that is looked for
	for end > 0 {
		from := max(0, end-step)
		chunk := make([]byte, end-from)
		if _, err := file.ReadAt(chunk, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if at := bytes.LastIndexByte(chunk, '\n'); at >= 0 {
			if at+1 < len(chunk) {
				last = chunk[at+1]
			}
			end = from + int64(at) + 1
			break
		}
		last, end = chunk[0], from
	}
	if end < size && last != '{' {
		return 0, errors.New("its last line has no end and is none of walpost's: name another path, or end that line")
	}
	return end, nil
}

// rotate gives the file another name, which tells when it ended, and begins a new one.
func (f *File) rotate(ctx context.Context) error {
	name := f.Path + "." + time.Now().UTC().Format("20060102T150405.000000000Z")
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("rotate: %s is there already", name)
	}
	if err := os.Rename(f.Path, name); err != nil {
		return err
	}
	f.forget()
	if err := f.lock(ctx); err != nil {
		return err
	}
	if err := syncFolder(f.Path); err != nil {
		return err
	}
	return f.ready()
}

// forget closes the file, which gives its lock back.
func (f *File) forget() {
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.size = nil, -1
}

// syncFolder makes a new name durable.
func syncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// Probe looks whether the file can be appended to. It makes none.
func (f *File) Probe(context.Context) error {
	info, err := os.Stat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		folder, err := os.Stat(filepath.Dir(f.Path))
		if err == nil && !folder.IsDir() {
			err = errors.New("its folder is none")
		}
		return err
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.Path)
	}
	file, err := os.OpenFile(f.Path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = endOfLines(file, info.Size())
	return err
}

// Close closes the file. No call may be under way.
func (f *File) Close() error {
	f.forget()
	return nil
}
