// Package eventschema checks payloads against a JSON Schema that belongs to a source. A schema is compiled once, from one
// file, and never fetches another: neither a file nor an address. What does not fit becomes a dead letter; package
// outbox asks, once for each event that it makes of a row or message.
package eventschema

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/backendstart/walpost/internal/safefile"
)

// maxFile is how large a schema may be.
const maxFile = 1 << 20

// A Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct{ compiled *jsonschema.Schema }

// Read compiles the schema in a file: draft 2020-12 where $schema names no other.
func Read(path string) (*Schema, error) {
	content, err := safefile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("%s is no JSON: %w", path, err)
	}
	const here = "walpost://schema" // no place that a reference could be relative to
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(nowhere{})
	if err := compiler.AddResource(here, document); err != nil {
		return nil, fmt.Errorf("%s is no JSON Schema: %w", path, err)
	}
	compiled, err := compiler.Compile(here)
	if err != nil {
		return nil, fmt.Errorf("%s is no JSON Schema: %w", path, explained(err))
	}
	return &Schema{compiled}, nil
}

// nowhere loads nothing.
type nowhere struct{}

func (nowhere) Load(url string) (any, error) {
	return nil, fmt.Errorf("it refers to %s, and nothing is fetched: put that schema below $defs of this file", url)
}

// explained is the part of a compiler's error that a person needs.
func explained(err error) error {
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		return load.Err
	}
	return err
}

// Check returns an error that says where a payload does not fit and by which keyword. nil is SQL NULL, which is checked
// as null. The error repeats nothing of the payload but names of members: it stands in logs.
func (s *Schema) Check(payload []byte) (err error) {
	// A number that is too large for big.Rat, and whatever else data can do to a library.
	defer func() {
		if panicked := recover(); panicked != nil {
			err = errors.New("the payload cannot be checked against the schema of its source")
		}
	}()
	if payload == nil {
		payload = []byte("null")
	}
	if err := bounded(payload); err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return errors.New("the payload is no JSON, and its source has a schema")
	}
	var invalid *jsonschema.ValidationError
	switch err := s.compiled.Validate(value); {
	case err == nil:
		return nil
	case !errors.As(err, &invalid):
		return errors.New("the payload cannot be checked against the schema of its source")
	}
	first, others := deepest(invalid)
	reason := fmt.Sprintf("the payload does not fit the schema of its source: at %s: %s", place(first.InstanceLocation), fault(first.ErrorKind))
	if others > 0 {
		reason += fmt.Sprintf(", and %d more", others)
	}
	return errors.New(reason)
}

// deepest is the first fault that has no causes, and how many others there are.
func deepest(e *jsonschema.ValidationError) (first *jsonschema.ValidationError, others int) {
	for _, cause := range e.Causes {
		of, more := deepest(cause)
		if first == nil {
			first, others = of, more
			continue
		}
		others += more + 1
	}
	if first == nil {
		return e, 0
	}
	return first, others
}

// maxName is how many bytes of a name that comes from the payload stand in a reason, and maxSteps how many names.
const (
	maxName  = 64
	maxSteps = 10
)

func place(location []string) string {
	if len(location) == 0 {
		return "the top"
	}
	var path strings.Builder
	for i, step := range location {
		if i == maxSteps {
			path.WriteString("/…")
			break
		}
		path.WriteString("/" + cut(step))
	}
	return strconv.Quote(path.String())
}

var english = message.NewPrinter(language.English)

// fault says which keyword fails. Only those whose message has nothing of the payload's values say more.
func fault(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type, *kind.Required, *kind.MinItems, *kind.MaxItems, *kind.MinProperties, *kind.MaxProperties, *kind.MinLength, *kind.MaxLength:
		return k.LocalizedString(english)
	case *kind.AdditionalProperties:
		return "a member that is not allowed: " + strconv.Quote(cut(k.Properties[0]))
	case *kind.FalseSchema:
		return "nothing is allowed there"
	}
	keyword := strings.Join(k.KeywordPath(), "/")
	if keyword == "" {
		keyword = "schema"
	}
	return cut(keyword) + " fails"
}

func cut(text string) string {
	if len(text) > maxName {
		return strings.ToValidUTF8(text[:maxName], "") + "…"
	}
	return text
}
