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
