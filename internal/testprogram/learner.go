package testprogram

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// lessonsPerTrack lets a learner meet every achievement, and then go on to the next track.
const lessonsPerTrack = 12

// Learner completes one lesson after the other over HTTP, never the same twice. It belongs to one
// goroutine.
type Learner struct {
	User   int64
	client http.Client
	lesson int
}

// Complete completes the next lesson and returns the event's id. After an error no one knows whether the
// lesson was completed, as in life; the next call goes on with the next lesson.
func (l *Learner) Complete(ctx context.Context, api string) (eventID string, err error) {
	l.lesson++
	l.client.Timeout = 10 * time.Second
	body := fmt.Sprintf(`{"track_slug": "track-%d", "lesson_slug": "lesson-%d"}`, (l.lesson-1)/lessonsPerTrack, l.lesson)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut,
		fmt.Sprintf("%s/api/progress/lessons/%d/complete", api, l.lesson), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-User-ID", strconv.FormatInt(l.User, 10))
	response, err := l.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("complete lesson %d for user %d: %s: %s", l.lesson, l.User, response.Status, answer)
	}
	var completed struct {
		EventID string `json:"event_id"`
	}
	if err := json.Unmarshal(answer, &completed); err != nil {
		return "", fmt.Errorf("complete lesson %d for user %d: answer %s: %w", l.lesson, l.User, answer, err)
	}
	return completed.EventID, nil
}
