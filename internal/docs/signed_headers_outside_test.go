//go:build outside

package docs

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// The JavaScript of docs/webhooks.md, in Node.
func TestOutside_NodeVerifiesSignedHeadersAsThePageShows(t *testing.T) {
	var code string
	for _, block := range blocks(t, webhooks, "js") {
		if strings.Contains(block, "function signedHeaders") {
			code = block
		}
	}
	type request struct {
		Header map[string]string `json:"header"`
		Body   string            `json:"body"`
		Secret string            `json:"secret"`
		What   string            `json:"what"`
		Want   bool              `json:"want"`
	}
	var requests []request
	add := func(r signedRequest, secret, what string, want bool) {
		header := map[string]string{}
		for name, values := range r.header {
			header[strings.ToLower(name)] = strings.Join(values, ", ") // as Node gives them
		}
		requests = append(requests, request{header, string(r.body), secret, what, want})
	}
	for _, r := range signedRequests(t) {
		add(r, firstSecret, "as sent", true)
		add(r, rotatedSecret, "as sent", true)
		add(r, "whsec_"+strings.Repeat("A", 32), "another key", false)
		for what, change := range tampered {
			on := signedRequest{r.header.Clone(), append([]byte(nil), r.body...)}
			change(&on)
			add(on, firstSecret, what, false)
		}
	}
	input, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "--input-type=module", "--eval", code+`
		import fs from "node:fs";
		for (const r of JSON.parse(fs.readFileSync(0, "utf8"))) {
			if (signedHeaders(r.header, Buffer.from(r.body), r.secret) !== r.want) console.log(r.what, r.header);
		}
		console.log("looked at all");`)
	node.Stdin = bytes.NewReader(input)
	output, err := node.CombinedOutput()
	if err != nil || string(output) != "looked at all\n" {
		t.Errorf("%v\n%s", err, output)
	}
}
