package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const posters = 64 // that post at the same time

// webhook compares posting events to a receiver on this machine with a bare loop of Go's HTTP client against
// the same receiver. Receiver and loop are processes of their own, as the relay is.
func webhook(ctx context.Context, l *lab) error {
	events := max(1, l.Events/10)
	b := bar{what: fmt.Sprintf("webhooks of %d bytes, concurrency %d", l.Payload, posters), unit: "events/s", baseline: "bare HTTP client loop", bar: 0.8, aim: 0.95}
	if !slices.Contains(l.Kinds, "webhook") {
		l.notRun("this program has no subscribers of kind webhook", b)
		return nil
	}
	receiver, err := l.start(ctx, nil, "receive")
	if err != nil {
		return err
	}
	defer receiver.stop()
	url, err := receiver.says(ctx, `receiving at (\S+)`)
	if err != nil {
		return err
	}
	if _, err := l.backlog(ctx, "100", events, l.Payload); err != nil {
		return err
	}
	f := flow{subscribers: []string{fmt.Sprintf("{name: hook, kind: webhook, url: %q, secret: %q, allow_private: true, concurrency: %d}",
		url, "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", posters)}}
	samples, err := l.turns(ctx, b.what,
		contestant{"walpost", func(ctx context.Context) (sample, error) { return l.drain(ctx, f, events, 1) }},
		contestant{b.baseline, func(ctx context.Context) (sample, error) { return l.post(ctx, url, events) }})
	if err != nil {
		return err
	}
	l.compare(b, samples[0], samples[1], rateOf)
	return nil
}

func (l *lab) post(ctx context.Context, url string, events int) (sample, error) {
	poster, err := l.start(ctx, nil, "post", "--url="+url, fmt.Sprintf("--events=%d", events), fmt.Sprintf("--payload=%d", l.Payload))
	if err != nil {
		return sample{}, err
	}
	defer poster.stop()
	all, err := poster.finishedAll(ctx, 1)
	if err != nil {
		return sample{}, err
	}
	return sample{
		rate:   float64(events) / time.Duration(all[0].Took).Seconds(),
		cpu:    float64(all[0].CPU) / 1e3 / float64(events),
		allocs: float64(all[0].Mallocs) / float64(events),
	}, nil
}

// Post posts so many bodies to url, as fast as a client goes that has nothing else to do, and says on out
// how long it took.
func Post(ctx context.Context, url string, events, payload int, out io.Writer) error {
	transport := &http.Transport{MaxIdleConnsPerHost: posters, MaxConnsPerHost: posters}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	body := []byte(strings.Repeat("x", payload))
	var sent atomic.Int64
	errs := make([]error, posters)
	cpu, allocs, begun := ownCPU(), mallocs(), time.Now()
	var all sync.WaitGroup
	for i := range posters {
		all.Go(func() {
			for errs[i] == nil && sent.Add(1) <= int64(events) {
				errs[i] = postOne(ctx, client, url, body)
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(finished{Subscriber: "post", Took: int64(took), CPU: int64(ownCPU() - cpu), Mallocs: mallocs() - allocs})
}

func postOne(ctx context.Context, client *http.Client, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("post to %s: %s", url, response.Status)
	}
	return err
}
