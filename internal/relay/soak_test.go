//go:build soak

package relay

import "testing"

func TestSoak_losesAndSwapsNothingInFiveMinutesOfTrouble(t *testing.T) { fiveMinutesOfTrouble(t, 500) }
