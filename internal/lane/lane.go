// Package lane is one subscriber's queue, workers and debt. It keeps the order within a key through
// retries, batches and debt, tells an outage from a poison event, and never lets a failing event delay
// another key. It does no I/O of its own: it calls the subscriber, and an Ower where something must be
// recorded. Package dispatch hands it events; what is told that they are finished or owed is
// package ack.
//
// The files in reading order, from what a lane is made of to what works with it; none uses what stands in a later one.
//
//   - Words and settings: ordering.go, backoff.go, options.go, stream.go, ower.go, metrics.go, stage.go, mode.go, outcome.go.
//   - Data without a lane: origin.go and queue.go (an event, and the events of one key), retries.go and backlog.go (which key
//     goes next), breaker.go (what failed attempts mean), slots.go, call.go, scope.go (what is in debt), flight.go.
//   - The lane's holdings, and how events move between them: holdings.go, in_debt.go,
//     admit.go, finish.go.
//   - One attempt: core.go, choose.go and probe.go (what goes into it), lead.go and abort.go (whether it may begin), dead.go,
//     judge.go and settle.go (what its end changes), attempt.go (from its start to its settlement), pipeline.go (the same for
//     a destination that reports delivery by delivery).
//   - The lane at work: lane.go, work.go (calls begin and follow each other), replay.go (what is handed over again).
//   - Its debt: pass.go and debt_reader.go; standstill.go, lookup.go, changes.go, record.go, pay.go (what there is to do);
//     rounds.go (in which order it is done), closing.go (what is done at a stop).
//   - run.go: its life.
package lane

import "time"

// Lane hands events to one subscriber. Offer may be called before and while Run runs.
//
// Invariant: of one key at most one call is under way, and no event is handed over while an earlier
// one of its key is unfinished.
type Lane struct {
	core
	pipe   *pipeline     // of a subscriber that is one; else nil
	spare  []*attempt    // for calls to come; guarded by mu
	wake   *time.Timer   // when the next retry or probe may begin; guarded by mu
	wakeAt time.Time     // of wake, zero when it is not set; guarded by mu
	behind time.Duration // age of the last event when it was offered; guarded by mu
}
