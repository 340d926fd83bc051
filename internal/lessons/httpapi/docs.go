package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"

	"github.com/danielgtaylor/huma/v2"
)

// The page needs no script and nothing from the internet, so it is the same offline.
var docsTemplate = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Info.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
code,pre{font-family:ui-monospace,monospace}pre{overflow:auto;padding:.75rem;border:1px solid #8884;border-radius:.4rem}
h2{font-size:1.1rem;margin-top:2rem}</style></head><body>
<h1>{{.Info.Title}} <small>{{.Info.Version}}</small></h1>
<p>{{.Info.Description}} The whole description: <a href="/openapi.json">/openapi.json</a> (OpenAPI {{.OpenAPI.OpenAPI}}).</p>
{{range .Operations}}<h2><code>{{.Method}} {{.Path}}</code></h2><p>{{.Summary}}.{{if .Security}} Needs a bearer token.{{end}}</p>
{{with .Parameters}}<ul>{{range .}}<li><code>{{.Name}}</code> in {{.In}}: {{.Description}}</li>{{end}}</ul>{{end}}{{end}}
<h2>Schemas</h2>{{range .Schemas}}<h3><code>{{.Name}}</code></h3><pre>{{.JSON}}</pre>{{end}}
</body></html>
`))

// docsPage renders the OpenAPI document for people.
func docsPage(spec *huma.OpenAPI) []byte {
	type schema struct{ Name, JSON string }
	data := struct {
		*huma.OpenAPI
		Operations []*huma.Operation
		Schemas    []schema
	}{OpenAPI: spec}
	for _, path := range slices.Sorted(maps.Keys(spec.Paths)) {
		item := spec.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete} {
			if op != nil {
				data.Operations = append(data.Operations, op)
			}
		}
	}
	schemas := spec.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		text, err := json.MarshalIndent(schemas[name], "", "  ")
		if err != nil {
			panic(fmt.Sprintf("httpapi: schema %s: %v", name, err))
		}
		data.Schemas = append(data.Schemas, schema{name, string(text)})
	}
	var page bytes.Buffer
	if err := docsTemplate.Execute(&page, data); err != nil {
		panic(fmt.Sprintf("httpapi: docs page: %v", err))
	}
	return page.Bytes()
}
