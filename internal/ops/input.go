package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/strictjson"
)

// This file reads what callers send. What is not certain is refused, with the name of the part: a choice that is read
// wrongly discards what was not meant.

const (
	// maxBody is room for a thousand event ids of the greatest length.
	maxBody = 1 << 20
	// How many deliveries GET /v1/owed returns by default, and at most.
	defaultLimit, maxLimit = 100, 1000
)

// maxValue is how many bytes a value in a path or a query may have.
const maxValue = 1024

// decode reads a JSON body into target, strictly.
func decode(r *http.Request, target any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return err
	case err != nil:
		return debt.Refused("body: it broke off")
	}
	if wrong := strictjson.Decode(body, target); wrong != nil {
		return debt.Refused(wrong.Error())
	}
	return nil
}

// checkText refuses what Postgres cannot compare with, and what is longer than anything there is.
func checkText(value string) error {
	switch {
	case !utf8.ValidString(value):
		return errors.New("it is no valid UTF-8")
	case strings.ContainsRune(value, 0):
		return errors.New("it contains the character NUL")
	case len(value) > maxValue:
		return fmt.Errorf("it is longer than %d bytes", maxValue)
	}
	return nil
}

// checkPath looks at the parts of a path that are names.
func checkPath(r *http.Request) error {
	for _, name := range []string{"name", "event", "id"} {
		if err := checkText(r.PathValue(name)); err != nil {
			return debt.Refused(fmt.Sprintf("%s in the path: %v", name, err))
		}
	}
	return nil
}

// queryOf reads a query string. Unlike URL.Query it drops nothing: a filter without one of its parts chooses more than
// is meant.
func queryOf(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, debt.Refused("query: " + err.Error())
	}
	for name, values := range query {
		if err := checkText(name); err != nil {
			return nil, debt.Refused(fmt.Sprintf("query: a name: %v", err))
		}
		if len(values) > 1 {
			return nil, debt.Refused(name + ": it is given more than once")
		}
		if err := checkText(values[0]); err != nil {
			return nil, debt.Refused(fmt.Sprintf("%s: %v", name, err))
		}
	}
	return query, nil
}

// withoutQuery is for a route that has no query: a dry_run there, in place of the body, would be no dry run.
func withoutQuery(answer func(context.Context, *http.Request) (any, error)) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		query, err := queryOf(r)
		if err != nil {
			return nil, err
		}
		for name := range query {
			return nil, debt.Refused(fmt.Sprintf("query.%s: this route takes no query", name))
		}
		return answer(ctx, r)
	}
}

// filterOf reads a filter from a query string. A name that is unknown is refused: misspelt, it would
// choose more than is meant.
func filterOf(r *http.Request) (filter debt.Filter, after string, err error) {
	filter.Limit = defaultLimit
	query, err := queryOf(r)
	if err != nil {
		return filter, "", err
	}
	for name, values := range query {
		value := values[0]
		var err error
		switch name {
		case "subscriber":
			filter.Subscriber = value
		case "source":
			filter.Source = value
		case "state":
			filter.State = lane.State(value)
			err = checkState(filter.State)
		case "type":
			filter.Type = value
		case "key":
			filter.Key = value
		case "event":
			filter.Events = []string{value}
		case "occurrence":
			filter.Occurrence = value
		case "since":
			filter.Since, err = parseTime(value)
		case "until":
			filter.Until, err = parseTime(value)
		case "error":
			filter.Error = value
		case "limit":
			filter.Limit, err = parseLimit(value)
		case "after":
			after = value
		default:
			err = errors.New("there is no such filter")
		}
		if err != nil {
			return filter, "", debt.Refused(fmt.Sprintf("%s: %v", name, err))
		}
	}
	return filter, after, nil
}

func parseLimit(text string) (int, error) {
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxLimit {
		return 0, fmt.Errorf("it must be a number from 1 to %d", maxLimit)
	}
	return limit, nil
}

// parseTime refuses the zero time, which stands for a filter that is not given.
func parseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.IsZero() {
		return at, errors.New("it must be a time as in 2026-01-31T15:04:05Z")
	}
	return at, nil
}

func checkState(state lane.State) error {
	if !slices.Contains([]lane.State{"", lane.StateWaiting, lane.StateDead}, state) {
		return debt.Refused(fmt.Sprintf("state %q: it must be %s or %s", state, lane.StateWaiting, lane.StateDead))
	}
	return nil
}
