package config

import (
	"io"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// Show writes the options of the selected command as a configuration file, secrets masked, with a
// comment where a value is no default.
func (p *Parser) Show(w io.Writer, ctx *kong.Context) error {
	options, comments := p.effective(ctx)
	options = append(options,
		yaml.MapItem{Key: "sources", Value: p.Flow.Sources},
		yaml.MapItem{Key: "subscribers", Value: p.Flow.Subscribers})
	return yaml.NewEncoder(w, yaml.WithComment(comments), yaml.IndentSequence(true)).Encode(options)
}

// ShowJSON writes the same as one JSON object.
func (p *Parser) ShowJSON(w io.Writer, ctx *kong.Context) error {
	options, _ := p.effective(ctx)
	options = append(options,
		yaml.MapItem{Key: "sources", Value: p.Flow.Sources},
		yaml.MapItem{Key: "subscribers", Value: p.Flow.Subscribers})
	return yaml.NewEncoder(w, yaml.JSON()).Encode(options)
}

func (p *Parser) effective(ctx *kong.Context) (yaml.MapSlice, yaml.CommentMap) {
	var options yaml.MapSlice
	comments := yaml.CommentMap{}
	groups := map[string]int{} // where in options a group like "window" stands
	for _, flag := range ctx.Flags() {
		key := FileKey(flag)
		if key == "" {
			continue
		}
		value := flag.Target.Interface()
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
	return options, comments
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
