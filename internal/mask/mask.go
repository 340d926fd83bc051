// Package mask takes secrets out of text that comes from outside: a receiver that answers with the request it got, a
// server that repeats the password it did not like. Such text is stored with the failure, logged and shown. Code
// that sends a secret feeds a Mask with it and passes every error through that Mask before the error is kept.
package mask

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Stars stand in the place of a secret.
const Stars = "********"

const (
	// gram is how long a part of a secret must be to be taken for one. Shorter parts are ordinary words.
	gram = 8
	// minSecret is the length below which nothing is masked: a text without its every "1" says nothing.
	minSecret = 4
)

// Mask knows secrets in the forms in which they can come back. The zero value knows none. It is not changed after New
// and With, and safe for concurrent use.
type Mask struct {
	grams  map[string]bool // every part of length gram
	shorts []string        // forms that are shorter than that
	forms  []string        // of which the end of a text may have the beginning
}

// New returns a Mask of these secrets.
func New(secrets ...string) *Mask { return new(Mask).With(secrets...) }

// With returns a Mask that knows more.
func (m *Mask) With(secrets ...string) *Mask {
	more := &Mask{grams: make(map[string]bool, len(m.grams))}
	for g := range m.grams {
		more.grams[g] = true
	}
	more.shorts = append(more.shorts, m.shorts...)
	more.forms = append(more.forms, m.forms...)
	for _, secret := range secrets {
		more.add(secret)
	}
	return more
}

// InHeader returns what is secret of the value of a header: of "Bearer abc" what follows the scheme, of Basic credentials
// the password too.
func InHeader(value string) []string {
	scheme, credentials, isPair := strings.Cut(value, " ")
	if !isPair || strings.ContainsFunc(scheme, func(r rune) bool { return !unicode.IsLetter(r) && r != '-' && r != '_' }) {
		return []string{value}
	}
	secrets := []string{credentials}
	if pair, err := base64.StdEncoding.DecodeString(credentials); err == nil && strings.EqualFold(scheme, "Basic") {
		if _, password, ok := strings.Cut(string(pair), ":"); ok {
			secrets = append(secrets, password)
		}
	}
	return secrets
}

// minPathToken is how long a part of a path must be to be taken for a token and not for a word.
const minPathToken = 16

// InURL returns the parts of an address that can be a token: some receivers know their senders by nothing else.
func InURL(address *url.URL) []string {
	var secrets []string
	for _, part := range strings.Split(address.Path, "/") {
		if len(part) >= minPathToken {
			secrets = append(secrets, part)
		}
	}
	for _, values := range address.Query() {
		secrets = append(secrets, values...)
	}
	return secrets
}

func (m *Mask) add(secret string) {
	if len(secret) < minSecret {
		return
	}
	for _, form := range formsOf(secret) {
		m.forms = append(m.forms, form)
		if len(form) < gram {
			m.shorts = append(m.shorts, form)
		}
		for i := 0; i+gram <= len(form); i++ {
			m.grams[form[i:i+gram]] = true
		}
	}
}

// formsOf are the ways to write a secret that people and programs use when they quote it.
func formsOf(secret string) []string {
	quoted, _ := json.Marshal(secret)
	escaped := url.QueryEscape(secret)
	forms := []string{
		secret, escaped, lowerEscapes(escaped), url.PathEscape(secret), lowerEscapes(url.PathEscape(secret)),
		strings.Trim(strconv.Quote(secret), `"`), strings.Trim(string(quoted), `"`), html.EscapeString(secret),
		hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		// Within a longer text, as in user:password, the secret begins at any of three places of a group. What the
		// neighbours decide, the first and last characters, is left out.
		for before := range 3 {
			encoded := encoding.EncodeToString(append(make([]byte, before), secret...))
			from, to := (before*8+5)/6, (before+len(secret))*8/6
			forms = append(forms, encoded[from:to])
		}
	}
	var distinct []string
	seen := map[string]bool{}
	for _, form := range forms {
		if len(form) >= minSecret && !seen[form] {
			seen[form] = true
			distinct = append(distinct, form)
		}
	}
	return distinct
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			b.WriteString(strings.ToLower(text[i : i+3]))
			i += 2
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// Text returns text without the secrets: whole, in another form, or parts of at least eight bytes of them. At its end a
// shorter part counts too, because that is where a text was cut.
func (m *Mask) Text(text string) string {
	if m == nil || len(m.forms) == 0 {
		return text
	}
	var hidden []bool // by byte; nil while there is nothing to hide
	hide := func(from, to int) {
		if hidden == nil {
			hidden = make([]bool, len(text))
		}
		for i := from; i < to; i++ {
			hidden[i] = true
		}
	}
	m.find(text, hide)
	// Programs escape more or fewer characters than those of formsOf, in ways of their own, and more than once.
	plain := unescaped{text: text}
	for range maxEscapes {
		if plain = plain.unescape(); plain.starts == nil {
			break
		}
		m.find(plain.text, func(from, to int) { hide(plain.starts[from], plain.starts[to]) })
	}
	if hidden == nil {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case !hidden[i]:
			b.WriteByte(text[i])
		case i == 0 || !hidden[i-1]:
			b.WriteString(Stars)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD") // a part may begin within a character
}

// find calls hide for what is secret in a text.
func (m *Mask) find(text string, hide func(from, to int)) {
	for i := 0; i+gram <= len(text); i++ {
		if m.grams[text[i:i+gram]] {
			hide(i, i+gram)
		}
	}
	for _, short := range m.shorts {
		for from := 0; ; {
			i := strings.Index(text[from:], short)
			if i < 0 {
				break
			}
			hide(from+i, from+i+len(short))
			from += i + len(short)
		}
	}
	for _, form := range m.forms {
		for n := min(len(form), gram) - 1; n >= minSecret; n-- {
			if strings.HasSuffix(text, form[:n]) {
				hide(len(text)-n, len(text))
				break
			}
		}
	}
}

// maxError is how much of an error is kept: some quote a line of what was received, however long.
const maxError = 4 << 10

// Error returns err with its text masked, and cut to 4 KiB. errors.Is and errors.As see through it. Error(nil) is nil.
func (m *Mask) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	masked := m.Text(text)
	if len(masked) > maxError {
		masked = strings.ToValidUTF8(masked[:maxError], "") + "…"
	}
	if masked == text {
		return err
	}
	return &maskedError{masked, err}
}

type maskedError struct {
	text string
	err  error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// Attr is for slog.HandlerOptions.ReplaceAttr: it masks what a line of the log says.
func (m *Mask) Attr(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		if text := a.Value.String(); text != "" {
			a.Value = slog.StringValue(m.Text(text))
		}
	case slog.KindAny:
		switch value := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(m.Text(value.Error()))
		case []byte:
			a.Value = slog.StringValue(m.Text(string(value)))
		}
	default:
	}
	return a
}
