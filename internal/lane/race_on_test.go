//go:build race

package lane_test

const underRace = true
