package doctor

import (
	"context"
	"slices"
	"time"
)

// RunOnly makes one check, for tests of many of them.
func RunOnly(ctx context.Context, o Options, id string) Report {
	return runChecks(ctx, o.withDefaults(), slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.id != id }))
}

// Every sets how often a watcher checks.
func (w *Watcher) Every(d time.Duration) { w.every = d }

// For servers that are not at hand: what is said about facts that they would give.
var (
	JudgeVersion = judgeVersion
	JudgeTLS     = judgeTLS
	JudgeSynced  = func(slot string, states []string) []Finding {
		return (&checker{Options: Options{Slot: slot}}).judgeSynced(states)
	}
	FixOf = func(source string) *Fix {
		return (&checker{}).set(&setting{name: "track_activities", value: "off", source: source}, "on")
	}
	JudgeStandbySlots = func(value string, present []string) []Finding {
		return (&checker{}).judgeStandbySlots(&setting{name: "synchronized_standby_slots", value: value, source: "configuration file"}, present)
	}
)
