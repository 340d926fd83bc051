package ops

import (
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// pathParameter is a part of a path that is a name.
var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// description is the OpenAPI 3.1 document of the routes. Schemas are made of the types that the handlers read and write, by
// huma; the requests themselves are read by this package, which is stricter (input.go).
func description(routes []route, version string) []byte {
	spec := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Walpost ops API", Version: version,
			Description: "What operators may see and change. Errors are problems as in RFC 9457; what is not certain is refused with 400.",
		},
		Components: &huma.Components{
			Schemas:         huma.NewMapRegistry("#/components/schemas/", schemaName),
			SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer", Description: "WALPOST_OPS_TOKEN, where the relay has one."}},
		},
	}
	schema := func(value any) *huma.Schema { return spec.Components.Schemas.Schema(reflect.TypeOf(value), true, "") }
	problem := func(about string) *huma.Response {
		return &huma.Response{Description: about, Content: map[string]*huma.MediaType{"application/problem+json": {Schema: schema(huma.ErrorModel{})}}}
	}
	for _, r := range routes {
		op := &huma.Operation{
			OperationID: operationID(r), Method: r.method, Path: r.path, Summary: r.summary,
			Security: []map[string][]string{{"bearer": {}}, {}}, // where no token is set, none is asked for
			Responses: map[string]*huma.Response{
				"200":     {Description: "What was asked for", Content: map[string]*huma.MediaType{"application/json": {Schema: schema(r.answers)}}},
				"default": problem("Why not"),
			},
		}
		if r.direct != nil {
			op.Responses["307"] = problem("This relay stands by; the header Location has the address of the leader")
		}
		if r.followed {
			for _, kind := range []string{"application/jsonl", eventStream} {
				op.Responses["200"].Content[kind] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
			}
		}
		for _, name := range pathParameter.FindAllStringSubmatch(r.path, -1) {
			op.Parameters = append(op.Parameters, &huma.Param{Name: name[1], In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
		for _, p := range r.query {
			s := &huma.Schema{Type: p.kind}
			if p.kind == "date-time" {
				s = &huma.Schema{Type: huma.TypeString, Format: p.kind}
			}
			op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "query", Description: p.about, Schema: s})
		}
		if r.body != nil {
			body := schema(r.body)
			spec.Components.Schemas.SchemaFromRef(body.Ref).Required = nil // what must be given, the problem says
			op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
		}
		spec.AddOperation(op)
	}
	document, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("ops: OpenAPI document: %v", err))
	}
	return document
}

// schemaName is package and type: more than one package has a Subscriber. A type without a name is called as huma does it.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Name() == "" || t.PkgPath() == "" {
		return huma.DefaultSchemaNamer(t, hint)
	}
	capital := func(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
	return capital(path.Base(t.PkgPath())) + capital(t.Name())
}

// operationID is a name for clients that are made from the document: getOwedEvent.
func operationID(r route) string {
	id := strings.ToLower(r.method)
	for part := range strings.SplitSeq(strings.TrimPrefix(r.path, "/v1/"), "/") {
		part = strings.Trim(part, "{}")
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}
