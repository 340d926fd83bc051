package lessons

import (
	"encoding/json"
	"fmt"
	"time"
)

// TypeLessonCompleted is the type of the event that LessonCompleted describes.
const TypeLessonCompleted = "lesson.completed"

// LessonCompleted is the payload of "lesson.completed": a learner completed a lesson for the first time.
type LessonCompleted struct {
	EventID       string    `json:"event_id"`
	Type          string    `json:"type"`
	CorrelationID string    `json:"correlation_id"`
	OccurredAt    time.Time `json:"occurred_at"` // UTC
	UserID        int64     `json:"user_id"`
	LessonID      int64     `json:"lesson_id"`
	TrackSlug     string    `json:"track_slug"`
	LessonSlug    string    `json:"lesson_slug"`
}

// ParseLessonCompleted reads the payload and refuses one that no subscriber could make sense of.
func ParseLessonCompleted(payload []byte) (LessonCompleted, error) {
	var lesson LessonCompleted
	if err := json.Unmarshal(payload, &lesson); err != nil {
		return LessonCompleted{}, fmt.Errorf("payload of %s: %w", TypeLessonCompleted, err)
	}
	switch {
	case lesson.UserID <= 0:
		return LessonCompleted{}, fmt.Errorf("payload of %s: user_id %d is not positive", TypeLessonCompleted, lesson.UserID)
	case lesson.LessonID <= 0:
		return LessonCompleted{}, fmt.Errorf("payload of %s: lesson_id %d is not positive", TypeLessonCompleted, lesson.LessonID)
	case lesson.TrackSlug == "" || lesson.LessonSlug == "":
		return LessonCompleted{}, fmt.Errorf("payload of %s: track_slug and lesson_slug must not be empty", TypeLessonCompleted)
	}
	return lesson, nil
}
