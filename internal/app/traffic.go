package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// learners, tracks and lessonsPerTrack make the demo's little school. A learner meets every achievement
// after ten lessons of a track.
const (
	learners        = 7
	lessonsPerTrack = 12
)

var tracks = []string{"go-basics", "postgres-internals", "http-apis", "testing"}

// traffic completes lessons over HTTP, as learners would.
type traffic struct {
	base string  // of the API
	rate float64 // completions a second
	log  *slog.Logger
}

// run completes one lesson after the other until ctx ends. It never gives up: the API may be restarting.
func (t traffic) run(ctx context.Context) error {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(max(time.Duration(float64(time.Second)/t.rate), time.Millisecond))
	defer tick.Stop()
	failing := false
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := t.complete(ctx, client, n)
		if ctx.Err() != nil {
			return nil
		}
		if (err != nil) != failing {
			failing = err != nil
			t.log.Warn("traffic", "failing", failing, "err", err)
		}
	}
}

// complete does the n-th completion. No two are alike, so each is an event.
func (t traffic) complete(ctx context.Context, client *http.Client, n int) error {
	user, lesson := n%learners+1, n/learners+1
	track := tracks[(n/learners/lessonsPerTrack)%len(tracks)]
	body, err := json.Marshal(map[string]string{"track_slug": track, "lesson_slug": fmt.Sprintf("lesson-%d", lesson)})
	if err != nil {
		return err
	}
	url := fmt.Sprintf("%s/api/progress/lessons/%d/complete", t.base, lesson)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-User-ID", strconv.Itoa(user))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("complete lesson %d for user %d: %s: %s", lesson, user, response.Status, answer)
	}
	return err
}
