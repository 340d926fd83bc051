package arch

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

//go:embed words.txt
var wordList string

// notOurWords are the places where one of the words is a name that is not ours.
var notOurWords = map[string]string{
	"internal/pgserver/system.go":         "nobody", // the Unix user
	"internal/doctor/pooler_real_test.go": "nobody",
}

// refusedWords are the refused words with what to write instead, and the refused whole names of functions.
func refusedWords() (words map[string]string, functions []string) {
	words = make(map[string]string)
	for line := range strings.Lines(wordList) {
		word, instead, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "", "#":
		case "func":
			functions = append(functions, strings.TrimSpace(instead))
		default:
			words[word] = strings.TrimSpace(instead)
		}
	}
	return words, functions
}

// splitWords splits text at everything that is no letter, before each capital that follows a small letter, and before
// one that a small letter follows.
func splitWords(text string) []string {
	var words []string
	letters := []rune(text)
	start := -1
	end := func(at int) {
		if start >= 0 {
			words = append(words, string(letters[start:at]))
		}
		start = -1
	}
	for i, r := range letters {
		if !unicode.IsLetter(r) {
			end(i)
			continue
		}
		followed := i+1 < len(letters) && unicode.IsLower(letters[i+1])
		if start >= 0 && unicode.IsUpper(r) && (unicode.IsLower(letters[i-1]) || followed) {
			end(i)
		}
		if start < 0 {
			start = i
		}
	}
	end(len(letters))
	return words
}

// refused returns the word of the list that word is, with or without an ending.
func refused(words map[string]string, word string) (string, bool) {
	word = strings.ToLower(word)
	for _, ending := range []string{"", "s", "ed", "ing"} {
		stem, has := strings.CutSuffix(word, ending)
		if _, is := words[stem]; has && is {
			return stem, true
		}
	}
	return "", false
}

// textsBelow calls see with each file of the repository that people read: code, SQL, docs, scripts and settings.
func textsBelow(t *testing.T, root string, see func(file, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator)))
		if entry.IsDir() {
			if name == ".git" || name == "bin" || entry.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".sql", ".md", ".sh", ".yml", ".yaml", ".txt", ".html", ".tmpl"}, path.Ext(name)) &&
			!slices.Contains([]string{"Makefile", "Dockerfile", "run"}, entry.Name()) {
			return nil
		}
		text, err := os.ReadFile(file)
		see(name, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWords_areTheFieldsOwn(t *testing.T) {
	words, _ := refusedWords()
	textsBelow(t, filepath.Join("..", ".."), func(file, text string) {
		if strings.HasPrefix(file, "internal/arch/words") {
			return
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			for _, word := range splitWords(line) {
				if stem, is := refused(words, word); is && notOurWords[file] != stem {
					t.Errorf("%s:%d says %q; plainer: %s", file, n, word, words[stem])
				}
			}
		}
	})
}

func TestFunctions_sayWhatTheyDoToWhat(t *testing.T) {
	_, names := refusedWords()
	textsBelow(t, filepath.Join("..", ".."), func(file, text string) {
		if path.Ext(file) != ".go" {
			return
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		for _, name := range functionsOf(parsed) {
			if slices.Contains(names, strings.ToLower(name.Name)) {
				t.Errorf("%s:%d: the whole name of a function is %s: name its effect and its object", file, files.Position(name.Pos()).Line, name.Name)
			}
		}
	})
}

func TestFunctionsOf_findsAllThatCanBeCalled(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "all.go", `package p
func declared(parameter func(), no int) (result func()) {
	literal, number := func() {}, 1
	var variable func()
	var value = func() {}
	literal = func() {}
	return nil
}
func (t T) method() {}
type T struct { field func(); count int }
type I interface { inInterface() }
`, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range functionsOf(parsed) {
		got = append(got, name.Name)
	}
	slices.Sort(got)
	want := []string{"declared", "field", "inInterface", "literal", "literal", "method", "parameter", "result", "value", "variable"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// functionsOf returns the names of everything in a file that can be called: functions, methods, those of interfaces, and
// fields, parameters and variables that hold a function.
func functionsOf(file *ast.File) (names []*ast.Ident) {
	literal := func(x ast.Expr) bool {
		_, is := x.(*ast.FuncLit)
		return is
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.Field:
			if _, is := n.Type.(*ast.FuncType); is {
				names = append(names, n.Names...)
			}
		case *ast.ValueSpec:
			if _, is := n.Type.(*ast.FuncType); is || slices.ContainsFunc(n.Values, literal) {
				names = append(names, n.Names...)
			}
		case *ast.AssignStmt:
			for i, x := range n.Rhs {
				if name, is := n.Lhs[i].(*ast.Ident); is && literal(x) {
					names = append(names, name)
				}
			}
		}
		return true
	})
	return names
}

func TestComments_endWithOneStop(t *testing.T) {
	textsBelow(t, filepath.Join("..", ".."), func(file, text string) {
		n := 0
		for line := range strings.Lines(text) {
			n++
			_, comment, is := strings.Cut(strings.TrimSpace(line), "// ")
			if is && path.Ext(file) == ".go" && (comment == "." || strings.HasSuffix(comment, "..") && !strings.HasSuffix(comment, "...")) {
				t.Errorf("%s:%d ends in a stop too many", file, n)
			}
		}
	})
}

func TestSplitWords(t *testing.T) {
	got := splitWords("errNobody mend_it TestX_saysAnew (exams) HTTPServer forANewOne")
	want := []string{"err", "Nobody", "mend", "it", "Test", "X", "says", "Anew", "exams", "HTTP", "Server", "for", "A", "New", "One"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRefused_knowsEndings(t *testing.T) {
	words, _ := refusedWords()
	for word, want := range map[string]bool{
		"mended": true, "Gulps": true, "nobody": true, "recommend": false, "hogwash": false, "example": false, "mendable": false,
	} {
		if _, is := refused(words, word); is != want {
			t.Errorf("%q: refused %v, want %v", word, is, want)
		}
	}
}

// The words of our own stand in one short list, so that a newcomer learns them in a minute.
func TestGlossary_isShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "## Words\n")
	glossary, _, _ := strings.Cut(rest, "\n## ")
	entries := strings.Count(glossary, "\n| ") - 2 // the head of the table and the line below it
	if !found || entries < 1 || entries > 28 {
		t.Errorf("the glossary has %d words, want 1 to 28", entries)
	}
}
