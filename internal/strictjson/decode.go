package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxText is how many bytes a string may have whose field says nothing in the tag "max".
const maxText = 256

// Decode reads an object into the struct that target points to. Each member must be one of its fields, by the exact
// name in the tag "json", and none may be null. A string, and each string of a list, has at most 256 bytes, or as many
// as the tag "max" says. A time must be in the years from 1 on: the zero time stands for a member that is not there.
func Decode(body []byte, target any) *Error {
	if wrong := Check(body); wrong != nil {
		return wrong
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return &Error{"body", "must be an object"}
	}
	fields := map[string]field{}
	fieldsOf(reflect.ValueOf(target).Elem(), fields)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		place := "body." + short(name)
		f, known := fields[name]
		if !known {
			return &Error{place, "unexpected property"}
		}
		if wrong := f.decode(members[name]); wrong != "" {
			return &Error{place, wrong}
		}
	}
	return nil
}

// field is where a member goes.
type field struct {
	value reflect.Value
	max   int
}

func fieldsOf(object reflect.Value, into map[string]field) {
	for i := range object.NumField() {
		declared := object.Type().Field(i)
		if declared.Anonymous {
			fieldsOf(object.Field(i), into)
			continue
		}
		f := field{object.Field(i), maxText}
		if text, limited := declared.Tag.Lookup("max"); limited {
			f.max, _ = strconv.Atoi(text) // 0 would refuse every text, and the first test of the route with it
		}
		name, _, _ := strings.Cut(declared.Tag.Get("json"), ",")
		into[name] = f
	}
}

// decode returns what is wrong, "" for nothing.
func (f field) decode(raw json.RawMessage) string {
	if string(raw) == "null" {
		return "must not be null: leave it out"
	}
	if err := json.Unmarshal(raw, f.value.Addr().Interface()); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && strings.HasPrefix(mismatch.Value, "number ") && isNumber(mismatch.Type) {
			return "is a number out of range, or not a whole one"
		}
		return "must be " + f.kind()
	}
	switch value := f.value.Interface().(type) {
	case time.Time:
		if value.IsZero() {
			return "is a time out of range"
		}
	case []string:
		for i, text := range value {
			if len(text) > f.max {
				return fmt.Sprintf("[%d] is longer than %d bytes", i, f.max)
			}
		}
	}
	if f.value.Kind() == reflect.String && f.value.Len() > f.max {
		return fmt.Sprintf("is longer than %d bytes", f.max)
	}
	return ""
}

func (f field) kind() string {
	kind := f.value.Type()
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch {
	case kind == reflect.TypeFor[time.Time]():
		return "a time as in 2026-01-31T15:04:05Z"
	case kind.Kind() == reflect.String:
		return "a string"
	case kind.Kind() == reflect.Bool:
		return "true or false"
	case kind.Kind() == reflect.Slice:
		return "a list of strings"
	}
	return "a whole number"
}

func isNumber(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64 }
