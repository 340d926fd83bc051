package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/backendstart/walpost/internal/safefile"
)

// What a configuration may cost. A file that it refers to may be larger than itself; maxExpanded is what it may become
// when its references are replaced, in bytes and with its aliases as often as they stand there.
const (
	maxConfig   = 256 << 10
	maxFile     = 1 << 20
	maxExpanded = 8 << 20
	parseTime   = 10 * time.Second
	// perValue is what a value counts in addition to its text: about as much as decoding it takes.
	perValue = 64
	maxDepth = 64
)

// DefaultFile is read when no file is named and it is there.
const DefaultFile = "walpost.yaml"

// problems gathers what is wrong with one file, with the line where it stands.
type problems struct {
	file string
	errs []error
}

// add notes a problem; line 0 is the file as a whole.
func (p *problems) add(line int, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	switch {
	case line > 0:
		err = fmt.Errorf("%s:%d: %w", p.file, line, err)
	case p.file != "":
		err = fmt.Errorf("%s: %w", p.file, err)
	}
	p.errs = append(p.errs, err)
}

type readingKey struct{}

// reading is what the unmarshalers in flow.go and kind.go know of the file they are part of.
type reading struct {
	*document
	kinds    Kinds
	delivers bool // the command uses what only delivery needs
}

func readingOf(ctx context.Context) reading { return ctx.Value(readingKey{}).(reading) }

// document is a configuration file, its references already replaced by what they refer to.
type document struct {
	problems
	lines   []string
	root    *ast.MappingNode    // nil for an empty file
	scalars map[string]ast.Node // everything else by path, "window.events"
	// unresolved says why the value of a node could not be had: a variable that is not set, a file that cannot be
	// read. It is a problem only for a command that uses the value.
	unresolved map[ast.Node]error
}

// resolved reports whether a value that is used could be had, and notes the problem if not.
func (d *document) resolved(node ast.Node) bool {
	err := d.unresolved[node]
	if text, ok := scalar(node); ok && err == nil {
		err = checkMask(text)
	}
	if err != nil {
		d.add(node.GetToken().Position.Line, "%w", err)
	}
	return err == nil
}

// checkMask refuses what stands for a secret where a configuration is printed.
func checkMask(text string) error {
	if strings.Contains(text, Mask) {
		return fmt.Errorf("%s stands for a secret that was not printed: write the secret, or a reference to it as in ${NAME}", Mask)
	}
	return nil
}

// resolvedBelow is resolved for all values of sources and subscribers; unused tells which keys are not used.
func (d *document) resolvedBelow(node ast.Node, unused func(key string) bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, pair := range n.Values {
			if !unused(keyOf(pair)) {
				d.resolvedBelow(pair.Value, unused)
			}
		}
	case *ast.SequenceNode:
		for _, value := range n.Values {
			d.resolvedBelow(value, unused)
		}
	default:
		d.resolved(node)
	}
}

// resolvedPairs are the pairs whose values could be had, whole.
func (d *document) resolvedPairs(pairs []*ast.MappingValueNode) []*ast.MappingValueNode {
	var whole []*ast.MappingValueNode
	for _, pair := range pairs {
		if d.isWhole(pair.Value) {
			whole = append(whole, pair)
		}
	}
	return whole
}

// isWhole reports whether a value and all below it could be had.
func (d *document) isWhole(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.MappingNode:
		return len(d.resolvedPairs(n.Values)) == len(n.Values)
	case *ast.SequenceNode:
		return !slices.ContainsFunc(n.Values, func(value ast.Node) bool { return !d.isWhole(value) })
	}
	text, _ := scalar(node)
	return d.unresolved[node] == nil && checkMask(text) == nil
}

// readDocument reads a file. What stops it from being read at all is the error; what is wrong with
// values is left in problems.
func readDocument(path string, lookup func(string) (string, bool)) (*document, error) {
	source, err := safefile.Read(path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("configuration file %s does not exist", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	doc := &document{
		problems:   problems{file: path},
		lines:      strings.Split(string(source), "\n"),
		scalars:    map[string]ast.Node{},
		unresolved: map[ast.Node]error{},
	}
	parsed, err := parseYAML(source)
	if errors.Is(err, errParse) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, doc.located(err)
	}
	if len(parsed.Docs) > 1 {
		return nil, fmt.Errorf("%s: more than one document, keep the part before the second ---", path)
	}
	if len(parsed.Docs) == 0 || parsed.Docs[0].Body == nil {
		return doc, nil
	}
	x := expander{doc: doc, lookup: lookup, anchors: map[string]ast.Node{}}
	expanded := x.expand(parsed.Docs[0].Body)
	if x.spent > maxExpanded || (&measure{}).of(expanded, 1) > maxExpanded {
		return nil, fmt.Errorf("%s: with its aliases and references it is larger than %d bytes, or nested deeper than %d levels", path, maxExpanded, maxDepth)
	}
	root, ok := expanded.(*ast.MappingNode)
	if !ok {
		return nil, fmt.Errorf("%s: keys and values are expected, as in \"slot: walpost\"", path)
	}
	doc.root = root
	for _, pair := range root.Values {
		if key := keyOf(pair); key != "sources" && key != "subscribers" {
			doc.flatten(key, pair.Value)
		}
	}
	return doc, nil
}

var errParse = errors.New("it is no configuration that a person wrote")

// parseYAML reads YAML within limits: the library takes time by the square of the depth, and of the number of keys.
func parseYAML(source []byte) (*ast.File, error) {
	if depth(source) > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d levels", errParse, maxDepth)
	}
	type result struct {
		file *ast.File
		err  error
	}
	parsed := make(chan result, 1) // the goroutine ends with the process when it is too late
	go func() {
		file, err := parser.ParseBytes(source, 0)
		parsed <- result{file, err}
	}()
	select {
	case r := <-parsed:
		return r.file, r.err
	case <-time.After(parseTime):
		return nil, fmt.Errorf("%w: reading it takes longer than %s", errParse, parseTime)
	}
}

// depth counts brackets that stand where a value begins. In a quoted text it can be wrong by as many as there are.
func depth(source []byte) int {
	now, most, before := 0, 0, byte('\n')
	for _, c := range source {
		switch c {
		case '[', '{':
			if strings.IndexByte("\n:-,[{", before) >= 0 {
				now++
			}
		case ']', '}':
			now = max(0, now-1)
		case ' ', '\t', '\r':
			continue
		}
		most, before = max(most, now), c
	}
	return most
}

// flatten spreads "window: {events: 1}" into the path "window.events".
func (d *document) flatten(path string, node ast.Node) {
	if mapping, ok := node.(*ast.MappingNode); ok {
		for _, pair := range mapping.Values {
			d.flatten(path+"."+keyOf(pair), pair.Value)
		}
		return
	}
	d.scalars[path] = node
}

// flow decodes sources and subscribers and puts the defaults where the file names none. A command that does not
// deliver needs no addresses and secrets of subscribers, and checks none.
func (d *document) flow(kinds Kinds, delivers bool) (Flow, error) {
	flow := Lessons()
	if d.root == nil {
		return flow, nil
	}
	var named Flow
	ctx := context.WithValue(context.Background(), readingKey{}, reading{d, kinds, delivers})
	for _, pair := range d.root.Values {
		var target any
		unused := func(string) bool { return false }
		switch keyOf(pair) {
		case "sources":
			target = &named.Sources
		case "subscribers":
			target = &named.Subscribers
			unused = func(key string) bool { return !delivers && len(kinds.knowing(key)) > 0 }
		default:
			continue
		}
		d.resolvedBelow(pair.Value, unused)
		if err := decodeNode(ctx, pair.Value, target); err != nil {
			return Flow{}, d.located(err)
		}
	}
	if len(named.Sources) > 0 {
		flow = Flow{Sources: named.Sources, Named: true}
	}
	if named.Subscribers != nil && len(named.Subscribers) == 0 {
		d.add(d.lineOf("$.subscribers"), "subscribers: name at least one, or leave the key out for the four of the learning platform")
	}
	if len(named.Subscribers) > 0 {
		flow.Subscribers = named.Subscribers
	}
	for i := range flow.Sources {
		if schema := &flow.Sources[i].Schema; *schema != "" && !filepath.IsAbs(*schema) {
			*schema = filepath.Join(filepath.Dir(d.file), *schema)
		}
	}
	(&checker{problems: &d.problems, where: d.lineOf, kinds: kinds, delivers: delivers}).flow(flow)
	return flow, nil
}

// lineOf finds where a path stands, or the nearest part of it that does; 0 when nothing does.
func (d *document) lineOf(path string) int {
	for path != "$" && d.root != nil {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterNode(d.root); err == nil && node != nil {
				return node.GetToken().Position.Line
			}
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return 0
}

// located says where an error of the YAML package stands. Of the line only the key is shown: values may
// be secrets, and this message goes to logs.
func (d *document) located(err error) error {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return fmt.Errorf("%s: %w", d.file, err)
	}
	pos := at.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %s%s", d.file, pos.Line, pos.Column, at.GetMessage(), d.snippet(pos.Line, pos.Column))
}

var keyOfLine = regexp.MustCompile(`^[\s-]*[A-Za-z_][\w-]{0,63}\s*:`)

func (d *document) snippet(line, column int) string {
	if line < 1 || line > len(d.lines) {
		return ""
	}
	text := keyOfLine.FindString(d.lines[line-1])
	if text == "" {
		return ""
	}
	if len(text) < len(strings.TrimRight(d.lines[line-1], " \r")) {
		text += " …"
	}
	gutter := fmt.Sprintf("%5d | ", line)
	column = min(column, len([]rune(text)))
	return fmt.Sprintf("\n%s%s\n%s^", gutter, text, strings.Repeat(" ", len(gutter)+max(column, 1)-1))
}

// expander replaces references and aliases by what they stand for, and numbers by their text: how a
// number is read depends on the option, and 007 in a header is no octal number.
type expander struct {
	doc     *document
	lookup  func(string) (string, bool)
	anchors map[string]ast.Node
	spent   int // bytes that references have brought
}

// grow reports whether so many more bytes may come from references; the file is refused when they may not.
func (x *expander) grow(n int) bool {
	x.spent += n
	return x.spent <= maxExpanded
}

// measure adds up what a document becomes when it is decoded: a list that stands there as an alias is decoded once more,
// and nine lists of nine aliases each become a billion values. A node that was measured is not walked again.
type measure struct{ known map[ast.Node]int }

func (m *measure) of(node ast.Node, depth int) int {
	if size, known := m.known[node]; known {
		return size
	}
	if depth > maxDepth {
		return maxExpanded + 1
	}
	size := perValue
	add := func(child ast.Node) { size = min(size+m.of(child, depth+1), maxExpanded+1) }
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, pair := range n.Values {
			size += len(keyOf(pair))
			add(pair.Value)
		}
	case *ast.SequenceNode:
		for _, value := range n.Values {
			add(value)
		}
	case *ast.StringNode:
		size += len(n.Value)
	}
	if m.known == nil {
		m.known = map[ast.Node]int{}
	}
	m.known[node] = size
	return size
}

func (x *expander) expand(node ast.Node) ast.Node {
	switch n := node.(type) {
	case *ast.MappingNode:
		if len(n.Values) == 1 && keyOf(n.Values[0]) == "file" {
			if text, ok := scalar(n.Values[0].Value); ok {
				path, unset := x.replace(text)
				content, err := x.readFile(n.Values[0].Value, path)
				if unset != nil {
					err = unset
				}
				return x.text(n.Values[0].Value, content, err)
			}
		}
		for _, pair := range n.Values {
			pair.Value = x.expand(pair.Value)
		}
	case *ast.SequenceNode:
		for i, value := range n.Values {
			n.Values[i] = x.expand(value)
		}
	case *ast.AnchorNode:
		value := x.expand(n.Value)
		x.anchors[n.Name.String()] = value
		return value
	case *ast.AliasNode:
		if value, ok := x.anchors[n.Value.String()]; ok {
			return value
		}
		x.doc.add(n.GetToken().Position.Line, "the alias *%s has no anchor before it", n.Value.String())
		return x.text(n, "", nil)
	case *ast.IntegerNode, *ast.FloatNode:
		return x.text(node, node.GetToken().Value, nil)
	case *ast.StringNode:
		text, err := x.replace(n.Value)
		// A reference may stand for a yes or no, the only plain value that is not read from text.
		if text != n.Value && (text == "true" || text == "false") {
			token := n.GetToken().Clone()
			token.Value = text
			return ast.Bool(token)
		}
		return x.text(node, text, err)
	case *ast.LiteralNode:
		text, err := x.replace(n.Value.Value)
		return x.text(node, text, err)
	}
	return node
}

// text is a string in the place of node: same line, same path. err says why it could not be had.
func (x *expander) text(node ast.Node, text string, err error) ast.Node {
	token := *node.GetToken()
	token.Value = text
	replaced := ast.String(&token)
	replaced.SetPath(node.GetPath())
	if err != nil {
		x.doc.unresolved[replaced] = err
	}
	return replaced
}

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

// replace puts variables in the place of ${NAME}; $${NAME} stays ${NAME}. The error names those that are not set.
func (x *expander) replace(text string) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var unset []error
	const kept = "\x00{"
	text = reference.ReplaceAllStringFunc(strings.ReplaceAll(text, "$${", kept), func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := x.lookup(name)
		if !ok {
			unset = append(unset, fmt.Errorf("the environment variable %s is not set", name))
		}
		if !x.grow(len(value)) {
			return ""
		}
		return value
	})
	return strings.ReplaceAll(text, kept, "${"), errors.Join(unset...)
}

// liveFiles are the values whose file is read again while the program runs: every secret, of Postgres, of a mail server,
// of a destination, of the two APIs.
var liveFiles = regexp.MustCompile(`^\$\.(database_url|replication_url|smtp_url|jwt_secret|ops_token|subscribers\[\d+\]\.(secret(\[\d+\])?|headers\..+|(sasl|auth)\.(user|password|token)))\.file$`)

// readFile reads what {file: path} names, seen from the configuration file.
func (x *expander) readFile(node ast.Node, path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(x.doc.file), path)
	}
	content, err := safefile.Read(path, maxFile)
	if err != nil || !x.grow(len(content)) {
		return "", err
	}
	text := safefile.TrimNewline(string(content))
	if absolute, err := filepath.Abs(path); err == nil && text != "" && liveFiles.MatchString(node.GetPath()) {
		return safefile.Live(absolute, text), nil
	}
	return text, nil
}

func keyOf(pair *ast.MappingValueNode) string { return pair.Key.GetToken().Value }

// scalar is the text of a value that is neither list nor mapping nor nothing.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}
