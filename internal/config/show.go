package config

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// Show writes the options of the selected command as a configuration file, with a comment where a value is no
// default. In the place of a secret stands a reference to a variable, to be filled in.
func (p *Parser) Show(w io.Writer, ctx *kong.Context) error {
	options, comments, err := p.effective(ctx)
	if err != nil {
		return err
	}
	return yaml.NewEncoder(w, yaml.WithComment(comments), yaml.IndentSequence(true)).Encode(options)
}

// ShowJSON writes the same as one JSON object.
func (p *Parser) ShowJSON(w io.Writer, ctx *kong.Context) error {
	options, _, err := p.effective(ctx)
	if err != nil {
		return err
	}
	return yaml.NewEncoder(w, yaml.JSON()).Encode(options)
}

func (p *Parser) effective(ctx *kong.Context) (yaml.MapSlice, yaml.CommentMap, error) {
	var options yaml.MapSlice
	comments := yaml.CommentMap{}
	groups := map[string]int{} // where in options a group like "window" stands
	for _, flag := range ctx.Flags() {
		key := FileKey(flag)
		if key == "" {
			continue
		}
		value := flag.Target.Interface()
		if secret, ok := value.(Secret); ok && secret != "" {
			value = "${" + flag.Envs[0] + "}"
		}
		if origin := p.origin(ctx, flag, key); origin != "" {
			comments["$."+key] = []*yaml.Comment{yaml.LineComment(" " + origin)}
		}
		group, inner, nested := strings.Cut(key, ".")
		if !nested {
			options = append(options, yaml.MapItem{Key: key, Value: value})
			continue
		}
		i, ok := groups[group]
		if !ok {
			i = len(options)
			groups[group] = i
			options = append(options, yaml.MapItem{Key: group, Value: yaml.MapSlice{}})
		}
		options[i].Value = append(options[i].Value.(yaml.MapSlice), yaml.MapItem{Key: inner, Value: value})
	}
	subscribers, err := withReferences(p.Flow.Subscribers)
	options = append(options, yaml.MapItem{Key: "sources", Value: p.Flow.Sources}, yaml.MapItem{Key: "subscribers", Value: subscribers})
	return options, comments, err
}

// withReferences returns subscribers as the file has them, with references in the place of their secrets.
func withReferences(subscribers []Subscriber) ([]yaml.MapSlice, error) {
	text, err := yaml.Marshal(subscribers)
	if err != nil {
		return nil, err
	}
	var written []yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(text, &written, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	for i, s := range written {
		for j, item := range s {
			s[j].Value = unmask(item.Value, variableName(subscribers[i].Name, item.Key))
		}
	}
	return written, nil
}

// unmask puts a reference to the variable in the place of a masked secret, and numbered ones in a list.
func unmask(value any, variable string) any {
	switch v := value.(type) {
	case string:
		if v == Mask {
			return "${" + variable + "}"
		}
	case []any:
		for i := range v {
			name := variable
			if i > 0 {
				name = fmt.Sprintf("%s_%d", variable, i+1)
			}
			v[i] = unmask(v[i], name)
		}
	case yaml.MapSlice: // headers: their names tell enough
		for i, item := range v {
			v[i].Value = unmask(item.Value, variableName(strings.TrimSuffix(variable, "_HEADERS"), item.Key))
		}
	}
	return value
}

var noVariable = regexp.MustCompile(`[^A-Z0-9]+`)

func variableName(of string, key any) string {
	return noVariable.ReplaceAllString(strings.ToUpper(fmt.Sprintf("%s_%v", of, key)), "_")
}

// origin tells where a value comes from; "" for a default.
func (p *Parser) origin(ctx *kong.Context, flag *kong.Flag, key string) string {
	for _, path := range ctx.Path {
		if path.Flag == flag && !path.Resolved {
			return "--" + flag.Name
		}
	}
	return p.origins[key]
}
