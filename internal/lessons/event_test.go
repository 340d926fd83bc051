package lessons

import (
	"strings"
	"testing"
)

func TestParseLessonCompleted_refusesWhatNoSubscriberCouldUse(t *testing.T) {
	const good = `{"user_id": 42, "lesson_id": 7, "track_slug": "go", "lesson_slug": "maps"}`
	lesson, err := ParseLessonCompleted([]byte(good))
	if err != nil || lesson.UserID != 42 || lesson.LessonID != 7 || lesson.TrackSlug != "go" || lesson.LessonSlug != "maps" {
		t.Fatalf("ParseLessonCompleted(%s): got %+v, %v", good, lesson, err)
	}
	for _, test := range []struct{ old, new, want string }{
		{good, ``, "payload of lesson.completed"},
		{good, `null`, "user_id 0"},
		{good, `[]`, "payload of lesson.completed"},
		{`42`, `0`, "user_id 0"},
		{`42`, `-1`, "user_id -1"},
		{`42`, `"42"`, "user_id"},
		{`42`, `4.2`, "user_id"},
		{`42`, `9223372036854775808`, "user_id"},
		{`"lesson_id": 7`, `"lesson_id": 0`, "lesson_id 0"},
		{`"go"`, `""`, "track_slug"},
		{`"maps"`, `""`, "lesson_slug"},
	} {
		payload := strings.Replace(good, test.old, test.new, 1)
		_, err := ParseLessonCompleted([]byte(payload))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("payload %s: got %v, want an error with %q", payload, err, test.want)
		}
	}
}
