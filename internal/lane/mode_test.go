package lane

import "testing"

func TestDebtMode_hasTheseTransitions(t *testing.T) {
	for name, step := range map[string]struct {
		step func(*debtMode)
		want [3]debtMode // from each mode
	}{
		"oweAll": {(*debtMode).oweAll, [3]debtMode{debtOfAll, debtOfAll, debtPaused}},
		"pause":  {(*debtMode).pause, [3]debtMode{debtPaused, debtPaused, debtPaused}},
		"resume": {(*debtMode).resume, [3]debtMode{debtByKey, debtOfAll, debtOfAll}},
		"narrow": {(*debtMode).narrow, [3]debtMode{debtByKey, debtByKey, debtPaused}},
	} {
		for from := debtByKey; from <= debtPaused; from++ {
			got := from
			if step.step(&got); got != step.want[from] {
				t.Errorf("%s from %v: got %v, want %v", name, from, got, step.want[from])
			}
		}
	}
}
