package ops

import (
	"context"
	"net/http"
)

// A route is a path of the ops API below /v1: who answers, and what /openapi.json says of it.
type route struct {
	method, path, summary string
	// answer answers within requestTimeout, once the caller may ask; direct does all of it by itself.
	answer func(context.Context, *http.Request) (any, error)
	direct http.HandlerFunc
	// query are the parameters that it takes; none means that each is refused.
	query []parameter
	// body and answers are values of the types that come in and go out.
	body, answers any
	// followed says that it also answers with a stream, of JSON lines or of server-sent events.
	followed bool
}

// A parameter of a query.
type parameter struct {
	name, kind, about string // kind is a type of JSON Schema, or date-time
}
