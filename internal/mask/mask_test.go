package mask

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

// S-06
func TestMask_hidesSecretsInEveryForm(t *testing.T) {
	const secret = `s3same/öpen+"now"&%`
	m := New(append(InHeader("Bearer "+secret), InHeader("Basic "+base64.StdEncoding.EncodeToString([]byte("alice:"+secret)))...)...)
	for name, text := range map[string]string{
		"plain":               secret,
		"in a header":         "Authorization: Bearer " + secret + "\r\nHost: x",
		"quoted":              fmt.Sprintf("%q", secret),
		"in a URL":            "https://x/?token=" + url.QueryEscape(secret),
		"in a URL, lower":     "https://x/?token=" + strings.ToLower(url.QueryEscape(secret)),
		"in a path":           "/hooks/" + url.PathEscape(secret) + "/x",
		"in HTML":             "<p>s3same/öpen+&#34;now&#34;&amp;%</p>",
		"in base64":           base64.StdEncoding.EncodeToString([]byte(secret)),
		"in base64, moved 1":  base64.StdEncoding.EncodeToString([]byte("a" + secret + "bc")),
		"in base64, moved 2":  base64.StdEncoding.EncodeToString([]byte("ab" + secret + "b")),
		"in base64url":        base64.URLEncoding.EncodeToString([]byte("user:" + secret)),
		"in hex":              hex.EncodeToString([]byte(secret)),
		"in HEX":              strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"its beginning":       "token " + secret[:10] + "…",
		"its end":             "token …" + secret[len(secret)-10:],
		"its middle":          "token …" + secret[5:15] + "…",
		"cut off at the end":  "the request was: Authorization: Bearer " + secret[:6],
		"as Basic credential": "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+secret)),
		"twice":               secret + " and " + secret,
	} {
		got := m.Text(text)
		if !strings.Contains(got, Stars) {
			t.Errorf("%s: %q is left as it is", name, got)
		}
		for _, piece := range []string{"s3sam", "öpen", "now", "%C3", "%c3", "czNzYW", "73337361"} {
			if strings.Contains(got, piece) {
				t.Errorf("%s: %q has %q in it", name, got, piece)
			}
		}
	}
}

// S-76: programs escape what they like, JSON a slash or each character, a URL each byte, HTML by number, and one does it
// to what another has done.
func TestMask_hidesSecretsWhateverIsEscaped(t *testing.T) {
	const secret = `aB3/dE+fG=hI<jK>lM&nO'pQ"rS`
	m := New(secret)
	each := func(format string) string {
		var b strings.Builder
		for _, c := range []byte(secret) {
			fmt.Fprintf(&b, format, c)
		}
		return b.String()
	}
	slashes := strings.NewReplacer("/", `\/`, "+", `\u002B`, "=", `\u003d`, `"`, `\"`, "<", `\u003C`, ">", `\u003E`, "&", `\u0026`, "'", `\u0027`).Replace(secret)
	entities := strings.NewReplacer("/", "&#x2F;", "+", "&#43;", "=", "&#x3D;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "&", "&amp;", "'", "&apos;").Replace(secret)
	for name, text := range map[string]string{
		"some in JSON":      slashes,
		"all in JSON":       each(`\u%04x`),
		"all in hex":        each(`\x%02x`),
		"all in a URL":      each("%%%02X"),
		"some in HTML":      entities,
		"all in HTML":       each("&#%d;"),
		"JSON in JSON":      strings.ReplaceAll(slashes, `\`, `\\`),
		"JSON in a URL":     url.QueryEscape(slashes),
		"HTML in JSON":      strings.ReplaceAll(entities, "&", `\u0026`),
		"cut within":        each(`\u%04x`)[:6*12+3],
		"a part, all of it": each("%%%02X")[3*8 : 3*18],
	} {
		got := m.Text("before \\ 100% & " + text + ", after")
		if want := "before \\ 100% & " + Stars; !strings.HasPrefix(got, want) || len(got) > len(want)+len(", after")+6 {
			t.Errorf("%s: got %q, want the secret hidden", name, got)
		}
	}
	for _, text := range []string{`C:\new\table 100% &amp; &#4; \u12 \ud800 %zz`, `\`, `%`, `&`, `\u`, `\ud83d\u`} {
		if got := m.Text(text); got != text {
			t.Errorf("got %q, want %q as it is", got, text)
		}
	}
}

func TestMask_leavesTheRestAlone(t *testing.T) {
	m := New(append(InHeader("Bearer abcdefghijklmnop"), "prod", "x1", "")...)
	for text, want := range map[string]string{
		"answered 503: try again in 12 s":        "answered 503: try again in 12 s",
		"host is prod-3":                         "host is " + Stars + "-3",
		"x1 and x2":                              "x1 and x2",
		"got abcdefghijklmnop, want another":     "got " + Stars + ", want another",
		"":                                       "",
		"the alphabet begins with abcdefg, then": "the alphabet begins with abcdefg, then",
	} {
		if got := m.Text(text); got != want {
			t.Errorf("Text(%q) is %q, want %q", text, got, want)
		}
	}
	var none *Mask
	if got := none.Text("abc"); got != "abc" {
		t.Errorf("no mask makes %q", got)
	}
}

func TestMask_keepsWhatAnErrorIs(t *testing.T) {
	m := New("open sesame")
	err := m.Error(fmt.Errorf("read open sesame: %w", io.ErrUnexpectedEOF))
	if !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != "read "+Stars+": unexpected EOF" {
		t.Errorf("the error is %v", err)
	}
	if got := len(m.Error(errors.New(strings.Repeat("x", 60<<10))).Error()); got > 5<<10 {
		t.Errorf("an error of 60 KiB becomes one of %d bytes", got)
	}
	if m.Error(nil) != nil || m.Error(io.EOF) != io.EOF { //nolint:errorlint // it is to be the same error
		t.Error("an error without a secret is another one")
	}
}

func TestMask_hidesSecretsInTheLog(t *testing.T) {
	var out strings.Builder
	m := New("open sesame")
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return m.Attr(a) }}))
	log.With("with", "open sesame").Info("it says open sesame", "text", "open sesame", "err", errors.New("open sesame"), "bytes", []byte("open sesame"), slog.Group("group", "in", "open sesame"))
	if strings.Contains(out.String(), "sesame") || strings.Count(out.String(), Stars) != 6 {
		t.Errorf("the log says %s", out.String())
	}
}

func FuzzMask(f *testing.F) {
	f.Add("a secret", "text with a secret in it")
	f.Fuzz(func(t *testing.T, secret, text string) {
		got := New(secret).Text(text + secret + text)
		if len(secret) >= gram && strings.Contains(got, secret) && !strings.Contains(Stars, secret) {
			t.Errorf("%q is in %q", secret, got)
		}
	})
}
