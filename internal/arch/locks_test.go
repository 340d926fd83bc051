package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a comment says of a lock is kept: a field that is "guarded by mu" is used, and a function named …Locked is
// called, where mu is held. Held means: in a function named …Locked, between mu.Lock() and mu.Unlock(), and in the
// methods of a type of which the comment says that all of it is guarded. A function that makes a value may use its
// fields; no one else knows it yet.
//
// The check reads statements in their order and knows one lock, whatever value it belongs to. It finds what was read
// after the lock was let go of, or without it; it does not find the lock of another value.
func TestLocks_areHeldWhereTheCommentsSaySo(t *testing.T) {
	for _, fault := range lockFaults(t, "../..") {
		t.Error(fault)
	}
}

// The test of the test.
func TestLockFaults_areFound(t *testing.T) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "lane.go", `package lane

import "sync"

type Lane struct {
	name  string
	mu    sync.Mutex
	open  int // guarded by mu
	items []*item // all of them; guarded by mu
}

// item is one of a lane.
//
// Invariant: all of it is guarded by Lane.mu.
type item struct {
	id   string // never changes
	fails int
}

func New() *Lane { l := &Lane{}; l.open = 1; return l }

func (it *item) attempts() int { return it.fails }

func (l *Lane) countLocked() int { return l.open }

func (l *Lane) good() (n int) {
	l.mu.Lock()
	items := l.items
	if len(items) == 0 {
		l.mu.Unlock()
		return 0
	}
	n = l.countLocked()
	func() { n += l.open }()
	l.mu.Unlock()
	println(l.name, items[0].id)
	l.mu.Lock()
	defer l.mu.Unlock()
	return n + l.open
}

func (l *Lane) bad() {
	println(l.open)
	l.mu.Lock()
	items := l.items
	go func() { println(items[0].fails) }()
	l.mu.Unlock()
	for _, it := range items {
		println(it.attempts(), l.countLocked())
	}
	if l.name == "" {
		l.mu.Lock()
	}
	println(l.open)
}
`, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	got := faultsOfPackage(files, []*ast.File{parsed})
	want := []string{
		"lane.go:43: bad uses Lane.open without the lock",
		"lane.go:46: bad uses item.fails without the lock",
		"lane.go:49: bad uses item.attempts without the lock",
		"lane.go:49: bad uses Lane.countLocked without the lock",
		"lane.go:54: bad uses Lane.open without the lock",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func lockFaults(t *testing.T, root string) (faults []string) {
	t.Helper()
	byFolder := make(map[string][]*ast.File)
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(files, file, nil, parser.ParseComments)
		if err == nil {
			folder := path.Dir(filepath.ToSlash(file))
			byFolder[folder] = append(byFolder[folder], parsed)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, parsed := range byFolder {
		faults = append(faults, faultsOfPackage(files, parsed)...)
	}
	slices.Sort(faults)
	return faults
}

var (
	guarded    = regexp.MustCompile(`guarded\s+by\s+(\w+\.)?mu\b`)
	allGuarded = regexp.MustCompile(`[Aa]ll of it is\s+guarded\s+by\s+(\w+\.)?mu\b`)
)

// locks knows what of a package is guarded, and finds where that is not kept.
type locks struct {
	info   *types.Info
	fields map[*types.Var]string    // guarded ones, with the name of their type
	whole  map[*types.TypeName]bool // types of which all is guarded
	files  *token.FileSet
	in     string              // the function that is looked at
	makes  map[types.Type]bool // types that it makes a value of
	faults []string
}

// noImports lets a package be checked without those that it imports: what is guarded is its own.
type noImports struct{}

func (noImports) Import(name string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not needed", name)
}

func faultsOfPackage(files *token.FileSet, parsed []*ast.File) []string {
	l := &locks{files: files, fields: make(map[*types.Var]string), whole: make(map[*types.TypeName]bool)}
	l.info = &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection), Types: make(map[ast.Expr]types.TypeAndValue)}
	check := types.Config{Importer: noImports{}, Error: func(error) {}}
	check.Check("p", files, parsed, l.info) //nolint:errcheck // what is imported is not known
	for _, file := range parsed {
		l.readTypes(file)
	}
	for _, file := range parsed {
		for _, declared := range file.Decls {
			if function, ok := declared.(*ast.FuncDecl); ok && function.Body != nil {
				l.readFunction(function)
			}
		}
	}
	return l.faults
}

func (l *locks) readTypes(file *ast.File) {
	for _, declared := range file.Decls {
		general, ok := declared.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			named, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			whole := allGuarded.MatchString(general.Doc.Text()) || allGuarded.MatchString(named.Doc.Text())
			if name, ok := l.info.Defs[named.Name].(*types.TypeName); ok && whole {
				l.whole[name] = true
			}
			structure, ok := named.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range structure.Fields.List {
				text := field.Doc.Text() + field.Comment.Text()
				if !guarded.MatchString(text) && (!whole || strings.Contains(text, "never changes")) {
					continue
				}
				for _, ident := range field.Names {
					if v, ok := l.info.Defs[ident].(*types.Var); ok {
						l.fields[v] = named.Name.Name
					}
				}
			}
		}
	}
}

func (l *locks) readFunction(function *ast.FuncDecl) {
	l.in, l.makes = function.Name.Name, make(map[types.Type]bool)
	held := strings.HasSuffix(l.in, "Locked")
	if function.Recv != nil {
		if f, ok := l.info.Defs[function.Name].(*types.Func); ok {
			held = held || l.isWhole(f.Signature().Recv().Type())
		}
	}
	ast.Inspect(function.Body, func(n ast.Node) bool {
		if literal, ok := n.(*ast.CompositeLit); ok {
			l.makes[l.info.Types[literal].Type] = true
		}
		return true
	})
	l.block(function.Body.List, held)
}

func named(t types.Type) *types.Named {
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	n, _ := t.(*types.Named)
	return n
}

func (l *locks) isWhole(t types.Type) bool {
	n := named(t)
	return n != nil && l.whole[n.Obj()]
}

// block looks at statements with the lock held or not, and returns whether it is held behind them and whether
// they are ever left there.
func (l *locks) block(list []ast.Stmt, held bool) (heldAfter, ends bool) {
	for _, s := range list {
		if held, ends = l.statement(s, held); ends {
			return held, true
		}
	}
	return held, false
}

// either is what is known behind two ways.
func either(held1, ends1, held2, ends2 bool) (held, ends bool) {
	switch {
	case ends1:
		return held2, ends2
	case ends2:
		return held1, false
	}
	return held1 && held2, false
}

func (l *locks) statement(s ast.Stmt, held bool) (heldAfter, ends bool) {
	switch s := s.(type) {
	case nil:
	case *ast.BlockStmt:
		return l.block(s.List, held)
	case *ast.LabeledStmt:
		return l.statement(s.Stmt, held)
	case *ast.IfStmt:
		held, _ = l.statement(s.Init, held)
		l.expression(s.Cond, held)
		held1, ends1 := l.block(s.Body.List, held)
		held2, ends2 := held, false
		if s.Else != nil {
			held2, ends2 = l.statement(s.Else, held)
		}
		return either(held1, ends1, held2, ends2)
	case *ast.ForStmt:
		held, _ = l.statement(s.Init, held)
		l.expression(s.Cond, held)
		after, ends := l.block(s.Body.List, held)
		l.statement(s.Post, after)
		return either(held, false, after, ends)
	case *ast.RangeStmt:
		l.expression(s.X, held)
		after, ends := l.block(s.Body.List, held)
		return either(held, false, after, ends)
	case *ast.SwitchStmt:
		held, _ = l.statement(s.Init, held)
		l.expression(s.Tag, held)
		return l.cases(s.Body, held)
	case *ast.TypeSwitchStmt:
		held, _ = l.statement(s.Init, held)
		held, _ = l.statement(s.Assign, held)
		return l.cases(s.Body, held)
	case *ast.SelectStmt:
		return l.cases(s.Body, held)
	case *ast.ReturnStmt:
		l.expression(s, held)
		return held, true
	case *ast.BranchStmt:
		return held, true
	case *ast.GoStmt:
		l.elsewhere(s.Call, held)
	case *ast.DeferStmt:
		if _, locks := lockCall(s.Call); locks {
			return true, false // until the end; where it is not taken here, what is called next takes it
		}
		l.expression(s.Call, held)
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			break
		}
		if lock, locks := lockCall(call); locks {
			return lock, false
		}
		l.expression(s, held)
		if ident, ok := call.Fun.(*ast.Ident); ok && ident.Name == "panic" {
			return held, true
		}
	default:
		l.expression(s, held)
	}
	return held, false
}

func (l *locks) cases(body *ast.BlockStmt, held bool) (heldAfter, ends bool) {
	heldAfter, ends = held, false
	first := true
	merge := func(h, e bool) {
		if first {
			first = false
			heldAfter, ends = h, e
			return
		}
		heldAfter, ends = either(heldAfter, ends, h, e)
	}
	whole := false
	for _, clause := range body.List {
		switch clause := clause.(type) {
		case *ast.CaseClause:
			for _, x := range clause.List {
				l.expression(x, held)
			}
			whole = whole || clause.List == nil
			merge(l.block(clause.Body, held))
		case *ast.CommClause:
			whole = true
			l.statement(clause.Comm, held)
			merge(l.block(clause.Body, held))
		}
	}
	if !whole {
		merge(held, false)
	}
	return heldAfter, false // a break ends its case alone, and what is behind it is reached
}

// lockCall reports whether a call takes or lets go of a lock named mu, and which.
func lockCall(call *ast.CallExpr) (lock, is bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false, false
	}
	var name string
	switch of := method.X.(type) {
	case *ast.SelectorExpr:
		name = of.Sel.Name
	case *ast.Ident:
		name = of.Name
	}
	if name != "mu" {
		return false, false
	}
	switch method.Sel.Name {
	case "Lock", "RLock":
		return true, true
	case "Unlock", "RUnlock":
		return false, true
	}
	return false, false
}

// elsewhere looks at a call that runs in another goroutine: its arguments are made here.
func (l *locks) elsewhere(call *ast.CallExpr, held bool) {
	for _, x := range append(call.Args, call.Fun) {
		if literal, ok := x.(*ast.FuncLit); ok {
			l.block(literal.Body.List, false)
			continue
		}
		l.expression(x, held)
	}
}

func (l *locks) expression(n ast.Node, held bool) {
	if n == nil {
		return
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			l.block(n.Body.List, held)
			return false
		case *ast.CallExpr:
			if method, ok := n.Fun.(*ast.SelectorExpr); ok && (method.Sel.Name == "AfterFunc" || method.Sel.Name == "Go") {
				l.elsewhere(n, held)
				return false
			}
		case *ast.UnaryExpr:
			if of, ok := n.X.(*ast.SelectorExpr); ok && n.Op == token.AND { // its address alone
				l.expression(of.X, held)
				return false
			}
		case *ast.SelectorExpr:
			l.use(n, held)
		case *ast.Ident:
			if f, ok := l.info.Uses[n].(*types.Func); ok && f.Signature().Recv() == nil && strings.HasSuffix(n.Name, "Locked") {
				l.fault(n, n.Name, held)
			}
		}
		return true
	})
}

func (l *locks) use(s *ast.SelectorExpr, held bool) {
	selection := l.info.Selections[s]
	if selection == nil {
		return
	}
	of := named(selection.Recv())
	if of == nil || l.makes[of] || l.makes[types.NewPointer(of)] {
		return
	}
	name := of.Obj().Name() + "." + s.Sel.Name
	switch obj := selection.Obj().(type) {
	case *types.Var:
		if _, is := l.fields[obj]; is {
			l.fault(s, name, held)
		}
	case *types.Func:
		if strings.HasSuffix(s.Sel.Name, "Locked") || l.isWhole(selection.Recv()) {
			l.fault(s, name, held)
		}
	}
}

func (l *locks) fault(n ast.Node, what string, held bool) {
	if held {
		return
	}
	at := l.files.Position(n.Pos())
	l.faults = append(l.faults, fmt.Sprintf("%s:%d: %s uses %s without the lock", at.Filename, at.Line, l.in, what))
}
