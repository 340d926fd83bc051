package nats

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// knownFor is how long what a stream says of itself is believed.
	knownFor = 30 * time.Second
	// describeFor is how long a stream may take to answer.
	describeFor = 5 * time.Second
	// maxKnown bounds how many streams are known. More than that take no batches.
	maxKnown = 100
)

// facts are what a stream says of itself. They are not changed once they are known.
type facts struct {
	name     string
	subjects []string // what it captures; none where it did not tell
	atomic   bool     // it takes batches whole
	staged   bool     // and keeps each on a disk before it takes it
	maxSize  int      // of a message; 0 is no bound
	asked    time.Time
}

// streams know which stream captures a subject: an acknowledgement names the stream, and that is asked once in a while. No
// subject is looked up by itself, so who may only publish can use them too, by waves.
type streams struct {
	mu     sync.Mutex
	known  map[string]*facts // by name; guarded by mu
	asking map[string]bool   // guarded by mu
}

func newStreams() *streams { return &streams{known: map[string]*facts{}, asking: map[string]bool{}} }

// of is the stream that captures a subject, nil where none is known.
func (s *streams) of(subject string) *facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.known {
		if f.captures(subject) {
			return f
		}
	}
	return nil
}

// named is the stream of this name, nil where it is not known.
func (s *streams) named(name string) *facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name]
}

// toAsk tells whether a stream is to be asked now. Who gets true calls learn.
func (s *streams) toAsk(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.known[name]
	if s.asking[name] || f != nil && time.Since(f.asked) < knownFor || f == nil && len(s.known) >= maxKnown {
		return false
	}
	s.asking[name] = true
	return true
}

// learn asks a stream. One that does not tell counts as one that takes no batches.
func (s *streams) learn(ctx context.Context, js jetstream.JetStream, name string) {
	ctx, cancel := context.WithTimeout(ctx, describeFor)
	defer cancel()
	learnt := &facts{name: name, asked: time.Now()}
	if stream, err := js.Stream(ctx, name); err == nil {
		config := stream.CachedInfo().Config
		learnt.subjects, learnt.maxSize = config.Subjects, max(0, int(config.MaxMsgSize))
		learnt.atomic, learnt.staged = config.AllowAtomicPublish, config.Replicas < 2 && config.Storage == jetstream.FileStorage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, name)
	s.known[name] = learnt
}

func (f *facts) captures(subject string) bool {
	for _, filter := range f.subjects {
		if matches(filter, subject) {
			return true
		}
	}
	return false
}

// matches tells whether a filter takes a subject: * stands for one token, > for one or more at the end.
func matches(filter, subject string) bool {
	for {
		want, moreWanted, wantsMore := strings.Cut(filter, ".")
		got, moreGot, hasMore := strings.Cut(subject, ".")
		switch {
		case want == ">" && !wantsMore:
			return true
		case want != "*" && want != got:
			return false
		case !wantsMore || !hasMore:
			return wantsMore == hasMore
		}
		filter, subject = moreWanted, moreGot
	}
}
