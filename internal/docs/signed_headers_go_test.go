package docs

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

// What docs/webhooks.md shows in Go stands here, is compiled, compared with the page and run.

// SignedHeaders reports whether the request has a signature in walpost-signature that was made with key, the bytes
// behind whsec_. How old the request is says webhook-signature's library.
func SignedHeaders(header http.Header, body, key []byte) bool {
	var lines []string
	for name, values := range header {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "ce-") || name == "x-correlation-id" ||
			strings.HasPrefix(name, "walpost-") && name != "walpost-signature" {
			lines = append(lines, name+":"+strings.Join(values, ", "))
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256(body)
	text := strings.Join(slices.Concat(
		[]string{"v1", header.Get("webhook-id"), header.Get("webhook-timestamp")},
		lines,
		[]string{hex.EncodeToString(sum[:])}), "\n")
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return slices.ContainsFunc(strings.Fields(header.Get("walpost-signature")), func(signature string) bool {
		return hmac.Equal([]byte(signature), want)
	})
}
