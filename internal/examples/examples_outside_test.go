//go:build outside

package examples

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestOutsideExamples_paymentsRunsToItsEnd(t *testing.T) {
	text := runToItsEnd(t, "payments", " webhook-id=evt-1-created ", " walpost-header-org-id=a0000000-", " walpost-version=1 ", "[24 24]")
	if n := strings.Count(text, "payments/"); n != 24 {
		t.Errorf("%d records, want 24", n)
	}
	for i := 1; i <= 12; i++ {
		created, settled := strings.Index(text, fmt.Sprintf("webhook-id=evt-%d-created ", i)), strings.Index(text, fmt.Sprintf("webhook-id=evt-%d-settled ", i))
		if created < 0 || settled < created {
			t.Errorf("payment %d: its events stand at %d and %d", i, created, settled)
		}
	}
}

func TestOutsideExamples_debeziumRunsToItsEnd(t *testing.T) {
	text := runToItsEnd(t, "debezium", " eventType=OrderPaid ", `{"cents": 9007199254740993, "order": 4}`, " eventType=ShipmentRemoved ", "(a tombstone)", "[8 0]")
	if orders, shipments := strings.Count(text, "outbox.event.order/"), strings.Count(text, "outbox.event.shipment/"); orders != 8 || shipments != 5 {
		t.Errorf("%d and %d records, want 8 and 5", orders, shipments)
	}
	for n := 1; n <= 4; n++ {
		at := func(kind string) int {
			found := regexp.MustCompile(fmt.Sprintf(`outbox\.event\.order/\d key=order-%d id=[-0-9a-f]{36} eventType=%s `, n, kind)).FindStringIndex(text)
			if found == nil {
				t.Fatalf("%s of order %d is not there\n%s", kind, n, text)
			}
			return found[0]
		}
		if at("OrderPaid") < at("OrderPlaced") {
			t.Errorf("order %d is paid before it is placed", n)
		}
	}
}
