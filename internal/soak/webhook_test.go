//go:build soak

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// nodeReceiver verifies with the Standard Webhooks library of npm, in another language than ours. The key
// that it knows is changed while it runs, as in a rotation.
const nodeReceiver = `
import http from "node:http";
import { Webhook } from "standardwebhooks";

let webhook = new Webhook(process.env.SECRET);
const ids = new Set();
const refusals = [];

http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString("utf8");
  if (request.url === "/secret") {
    webhook = new Webhook(body);
  } else if (request.url === "/counts") {
    response.end(JSON.stringify({ verified: ids.size, ids: [...ids], refusals }));
    return;
  } else {
    try {
      webhook.verify(body, request.headers);
      ids.add(request.headers["webhook-id"]);
    } catch (error) {
      refusals.push(error.message);
      response.writeHead(401).end(error.message);
      return;
    }
  }
  response.writeHead(204).end();
}).listen(0, "127.0.0.1", function () { console.log("listening on " + this.address().port); });
`

var signingKeys = []string{
	"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDZ0J7cMlQr4A=",
}

// A key is rotated under load: walpost signs with both, the receiver changes, the old key goes. No event is
// refused on the way, and one with a wrong key is.
func TestSoak_aReceiverInNodeVerifiesSignaturesThroughKeyRotations(t *testing.T) {
	db := testdb.New(t)
	receiver := startNodeReceiver(t, signingKeys[0])
	stop := until(func(ctx context.Context) { insert(ctx, t, db, 0, 1, 100) })
	defer stop()

	// more starts a relay that signs with keys, and waits until so many more events have been verified.
	more := func(n int, keys ...string) {
		t.Helper()
		relay := startWebhook(t, db, receiver.url, keys)
		relay.AwaitStreaming()
		before := receiver.counts(t).Verified
		testprogram.Eventually(t, "signatures to be verified", func() bool { return receiver.counts(t).Verified >= before+n })
		relay.Stop()
	}
	rotations := rounds(t, 20)
	for round := range rotations {
		old, next := signingKeys[round%2], signingKeys[(round+1)%2]
		more(50, old)
		relay := startWebhook(t, db, receiver.url, []string{next, old})
		relay.AwaitStreaming()
		before := receiver.counts(t).Verified
		testprogram.Eventually(t, "both signatures with the old key", func() bool { return receiver.counts(t).Verified >= before+50 })
		receiver.post(t, "/secret", next)
		before = receiver.counts(t).Verified
		testprogram.Eventually(t, "both signatures with the new key", func() bool { return receiver.counts(t).Verified >= before+50 })
		relay.Stop()
		more(50, next)
	}
	if got := receiver.counts(t).Refusals; len(got) != 0 {
		t.Errorf("%d signatures were refused during rotations, the first one: %s", len(got), got[0])
	}

	current := signingKeys[rotations%2]
	wrong := startWebhook(t, db, receiver.url, []string{signingKeys[(rotations+1)%2]})
	testprogram.Eventually(t, "a wrong key to be refused", func() bool { return len(receiver.counts(t).Refusals) > 0 })
	wrong.Stop()
	stop()
	last := startWebhook(t, db, receiver.url, []string{current})
	testprogram.AwaitPublished(t, db, 5*time.Minute)
	last.Stop()
	counts, written := receiver.counts(t), db.Int(`SELECT count(*) FROM outbox`)
	if int64(counts.Verified) != written {
		t.Errorf("%d events verified, %d written", counts.Verified, written)
	}
	fmt.Printf("%d rotations: %d events verified by the library for Node, none refused; %d refused with a wrong key and sent again\n",
		rotations, counts.Verified, len(counts.Refusals))
	endReceiverByLosingTheSlot(t, db, func() *testprogram.Process { return startWebhook(t, db, receiver.url, []string{current}) },
		func() []string { return receiver.counts(t).IDs })
}

func startWebhook(t *testing.T, db *testdb.DB, url string, keys []string) *testprogram.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf("subscribers:\n  - {name: hook, kind: webhook, url: %q, allow_private: true, secret: [%s], retry: {initial: 50ms, max: 200ms}}\n",
		url, strings.Join(keys, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN},
		"relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
}

// node is the running receiver.
type node struct{ url string }

type nodeCounts struct {
	Verified int      `json:"verified"` // events, each counted once
	IDs      []string `json:"ids"`      // of these
	Refusals []string `json:"refusals"`
}

// startNodeReceiver installs the library into a folder of the test and starts the receiver there.
func startNodeReceiver(t *testing.T, secret string) node {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "receiver.mjs"), []byte(nodeReceiver), 0o600); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "standardwebhooks@1")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install standardwebhooks: %v; this test needs Node 18 or newer with npm\n%s", err, out)
	}
	binary, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	process := testprogram.StartBinary(t, binary, []string{"SECRET=" + secret}, filepath.Join(dir, "receiver.mjs"))
	return node{"http://127.0.0.1:" + process.Await(`listening on (\d+)`)}
}

func (n node) post(t *testing.T, path, body string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func (n node) counts(t *testing.T) (counts nodeCounts) {
	t.Helper()
	if err := json.Unmarshal(n.post(t, "/counts", ""), &counts); err != nil {
		t.Fatal(err)
	}
	return counts
}
