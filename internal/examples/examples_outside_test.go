//go:build outside

package examples

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testprogram"
)

func TestOutsideExamples_paymentsRunsToItsEnd(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), testprogram.Binary(t), folder("payments"), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	text := out.String()
	for _, want := range []string{" webhook-id=evt-1-created ", " walpost-header-org-id=a0000000-", " walpost-version=1 ", "[24 24]", "stopped clean"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not there", want)
		}
	}
	if n := strings.Count(text, "payments/"); n != 24 {
		t.Errorf("%d records, want 24", n)
	}
	for i := 1; i <= 12; i++ {
		created, settled := strings.Index(text, fmt.Sprintf("webhook-id=evt-%d-created ", i)), strings.Index(text, fmt.Sprintf("webhook-id=evt-%d-settled ", i))
		if created < 0 || settled < created {
			t.Errorf("payment %d: its events stand at %d and %d", i, created, settled)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
