//go:build soak

package debt_test

import "testing"

func TestSoak_aDebtOfAMillionIsPaidInBoundedMemory(t *testing.T) {
	db := passDebt(t, lessons(), 1_000_000)
	want(t, "unmarked rows", db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`), 0)
}
