package subscribertest

import (
	"encoding/json"
	"strings"
)

// unreadable are payloads that no attempt will ever make sense of, by what is wrong with them. Some cannot
// be stored in a jsonb column, but a json column or a logical message lets them through.
func unreadable() map[string][]byte {
	payloads := map[string][]byte{
		"SQL NULL":              nil,
		"nothing":               {},
		"JSON null":             []byte(`null`),
		"words":                 []byte(`not json`),
		"half an object":        []byte(`{"user_id": 1`),
		"two values":            []byte(`{} {}`),
		"an array":              []byte(`[]`),
		"a text":                []byte(`"user"`),
		"a number":              []byte(`42`),
		"an empty object":       []byte(`{}`),
		"bytes":                 {0xff, 0x00, 0xfe},
		"very deep nesting":     []byte(strings.Repeat("[", 20000) + strings.Repeat("]", 20000)),
		"user_id as text":       changed("user_id", `"1"`),
		"user_id 0":             changed("user_id", `0`),
		"user_id below 0":       changed("user_id", `-9223372036854775808`),
		"user_id with fraction": changed("user_id", `1.5`),
		"user_id too large":     changed("user_id", `9223372036854775808`),
		"user_id of 400 digits": changed("user_id", strings.Repeat("9", 400)),
		"user_id 1e400":         changed("user_id", `1e400`),
		"lesson_id as object":   changed("lesson_id", `{}`),
		"lesson_id too large":   changed("lesson_id", `123456789012345678901234567890`),
		"track_slug as number":  changed("track_slug", `7`),
		"track_slug empty":      changed("track_slug", `""`),
		"track_slug too long":   changed("track_slug", `"`+strings.Repeat("a", 129)+`"`),
		"track_slug with NUL":   changed("track_slug", `"a\u0000b"`),
		"lesson_slug as array":  changed("lesson_slug", `["a"]`),
		"lesson_slug too long":  changed("lesson_slug", `"`+strings.Repeat("é", 129)+`"`),
		"lesson_slug with NUL":  changed("lesson_slug", `"\u0000"`),
		"occurred_at in words":  changed("occurred_at", `"yesterday"`),
		"occurred_at as number": changed("occurred_at", `1700000000`),
	}
	for _, field := range []string{"user_id", "lesson_id", "track_slug", "lesson_slug", "occurred_at"} {
		payloads[field+" null"] = changed(field, `null`)
		payloads[field+" missing"] = changed(field, "")
	}
	return payloads
}

// changed is a valid payload with another value for one field, or without it when value is "".
func changed(field, value string) []byte {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(LessonCompleted(0).Payload, &fields); err != nil {
		panic(err)
	}
	delete(fields, field)
	if value != "" {
		fields[field] = json.RawMessage(value)
	}
	payload, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return payload
}
