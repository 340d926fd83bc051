package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/safefile"
)

// Parser reads a command line, the environment and the file. It is used once and by one goroutine.
type Parser struct {
	// Kong is the command line's model, for help and completion.
	Kong *kong.Kong
	// Flow is what the file says about sources and subscribers, after Parse.
	Flow Flow
	// Path is the file that was read, "" for none.
	Path string
	// Found tells that Path is the file of the working directory, which no one has named.
	Found bool
	// Delivers tells of a command whether it delivers, and so uses what belongs to kinds of
	// subscribers alone: addresses, secrets. What a command does not use it does not need. nil is yes for all. Set it before Parse.
	Delivers func(command string) bool

	lookup   func(string) (string, bool)
	kinds    Kinds
	doc      *document
	origins  map[string]string // by key of the file: what set it, nothing for a default
	fromFile map[string]bool   // keys that the file has set
	problems problems          // of the environment
}

// NewParser makes a parser of grammar, a kong structure whose commands embed the options of this
// package. lookup is os.LookupEnv, or a test's; kinds are the subscribers that the program has.
func NewParser(grammar any, lookup func(string) (string, bool), kinds Kinds, options ...kong.Option) (*Parser, error) {
	p := &Parser{lookup: lookup, kinds: kinds, origins: map[string]string{}, fromFile: map[string]bool{}}
	options = append(options, kong.Resolvers(p), kong.ValueFormatter(valueHelp))
	options = append(options, mappers...)
	var err error
	if p.Kong, err = kong.New(grammar, options...); err != nil {
		return nil, fmt.Errorf("command line model: %w", err)
	}
	// The environment is read by Resolve, not by kong: there an empty variable would count as set, and
	// the first bad one would end everything with its value in the message.
	for _, flag := range allFlags(p.Kong.Model.Node) {
		flag.Tag.Envs = nil
	}
	return p, nil
}

// Parse reads everything for the command that args name. Every error is an *Error.
func (p *Parser) Parse(args []string) (*kong.Context, error) {
	p.Flow = Lessons()
	ctx, err := p.Kong.Parse(args)
	var usage *kong.ParseError
	if errors.As(err, &usage) {
		err = usageError(usage)
	}
	errs := []error{err}
	if p.doc != nil {
		errs = append(errs, p.doc.errs...)
	}
	return ctx, Invalid(append(errs, p.problems.errs...)...)
}

func usageError(err *kong.ParseError) error {
	var several *Error
	if errors.As(err, &several) {
		return several
	}
	command := "walpost"
	if err.Context != nil && err.Context.Selected() != nil {
		command = err.Context.Selected().FullPath()
	}
	return fmt.Errorf("%w (%s --help shows what there is)", err, command)
}

// read reads the file, for a command that has the option --config.
func (p *Parser) read(ctx *kong.Context) error {
	var named *kong.Flag
	for _, flag := range ctx.Flags() {
		if flag.Name == "config" {
			named = flag
		}
	}
	if p.doc != nil || named == nil {
		return nil
	}
	p.Path, _ = ctx.FlagValue(named).(string)
	if p.Path == "" {
		p.Path, _ = p.lookup(named.Envs[0])
	}
	if p.Path == "" {
		if _, err := os.Lstat(DefaultFile); errors.Is(err, fs.ErrNotExist) {
			p.doc = &document{}
			return nil
		}
		if err := safefile.CheckOwner(DefaultFile); err != nil {
			return Invalid(fmt.Errorf("%s of the working directory is not used: %w: name it with --config or WALPOST_CONFIG if it is yours, "+
				"or go to another directory", DefaultFile, err))
		}
		p.Path, p.Found = DefaultFile, true
	}
	doc, err := readDocument(p.Path, p.lookup)
	if err != nil {
		return Invalid(err)
	}
	if err := p.unknownKey(doc, ctx.Model.Node); err != nil {
		return Invalid(err)
	}
	if p.Flow, err = doc.flow(p.kinds, p.Delivers == nil || p.Delivers(ctx.Command())); err != nil {
		return Invalid(append(doc.errs, err)...)
	}
	p.doc = doc
	return nil
}

// InFile returns where in the file the option stands that has this key, "" if a flag or a variable has set it, or
// nothing has.
func (p *Parser) InFile(ctx *kong.Context, key string) string {
	for _, path := range ctx.Path {
		if path.Flag != nil && FileKey(path.Flag) == key && !path.Resolved {
			return ""
		}
	}
	if !p.fromFile[key] {
		return ""
	}
	return p.origins[key]
}

// unknownKey refuses the first key that is no option of any command: most likely it is misspelt.
func (p *Parser) unknownKey(doc *document, model *kong.Node) error {
	known := map[string]bool{}
	for _, flag := range allFlags(model) {
		if key := FileKey(flag); key != "" {
			known[key] = true
		}
	}
	first, line, column := "", 0, 0
	for key, node := range doc.scalars {
		if pos := node.GetToken().Position; !known[key] && (first == "" || pos.Line < line) {
			first, line, column = key, pos.Line, 1
		}
	}
	if first == "" {
		return nil
	}
	hint := nearest(first, slices.Sorted(maps.Keys(known)))
	return fmt.Errorf("%s:%d: unknown key %q%s%s", doc.file, line, first, hint, doc.snippet(line, column))
}

// nearest names a key that begins or ends alike; a misspelling rarely spares neither.
func nearest(key string, known []string) string {
	for _, candidate := range known {
		n := min(4, len(key), len(candidate))
		if key[:n] == candidate[:n] || strings.HasSuffix(candidate, "."+key) {
			return fmt.Sprintf(", is %s meant?", candidate)
		}
	}
	return ""
}

// Resolve implements kong.Resolver: what the command line does not say, the environment does, and then
// the file. A value that does not parse is noted, and the default stands in until all are reported.
func (p *Parser) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	key := FileKey(flag)
	for _, name := range flag.Envs {
		text, ok := p.lookup(name)
		if !ok || text == "" {
			continue
		}
		if err := cmp.Or(checkMask(text), try(flag, text)); err != nil {
			p.problems.add(0, "%s: %w", name, err)
			return nil, nil
		}
		p.origins[key] = name
		return text, nil
	}
	if p.doc == nil || key == "" {
		return nil, nil
	}
	node, ok := p.doc.scalars[key]
	if !ok {
		return nil, nil
	}
	if !p.doc.resolved(node) {
		return nil, nil
	}
	line := node.GetToken().Position.Line
	text, ok := scalar(node)
	if !ok {
		p.doc.add(line, "%s: a single value is expected", key)
		return nil, nil
	}
	if err := try(flag, text); err != nil {
		p.doc.add(line, "%s: %w", key, err)
		return nil, nil
	}
	p.origins[key], p.fromFile[key] = fmt.Sprintf("%s:%d", p.doc.file, line), true
	return text, nil
}

// Validate implements kong.Resolver; unknownKey has done it.
func (p *Parser) Validate(*kong.Application) error { return nil }

// try parses text into a value that no one keeps.
func try(flag *kong.Flag, text string) error {
	scratch := reflect.New(flag.Target.Type()).Elem()
	scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: text})
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, scratch); err != nil {
		return err
	}
	if flag.Enum != "" && !slices.Contains(flag.EnumSlice(), text) {
		return fmt.Errorf("%q is none of %s", text, strings.Join(flag.EnumSlice(), ", "))
	}
	return nil
}

// FileKey is the option's key in walpost.yaml, "window.events"; "" for a flag that is no option of the
// file. Options are the flags that have a variable.
func FileKey(flag *kong.Flag) string {
	if len(flag.Envs) == 0 || flag.Name == "config" {
		return ""
	}
	if key := flag.Tag.Get("file"); key != "" {
		return key
	}
	return strings.ReplaceAll(flag.Name, "-", "_")
}

// valueHelp adds variable and default to an option's help; placeholders say what kind of value it is.
func valueHelp(value *kong.Value) string {
	var notes []string
	if value.Flag != nil && len(value.Flag.Envs) > 0 {
		notes = append(notes, value.Flag.Envs[0])
	}
	if value.HasDefault && value.Default != "" && !value.IsBool() {
		notes = append(notes, "default "+value.Default)
	}
	if len(notes) == 0 {
		return value.Help
	}
	return value.Help + " (" + strings.Join(notes, ", ") + ")"
}

// allFlags lists the flags of a command and of all below it.
func allFlags(node *kong.Node) []*kong.Flag {
	flags := slices.Clone(node.Flags)
	for _, child := range node.Children {
		flags = append(flags, allFlags(child)...)
	}
	return flags
}
