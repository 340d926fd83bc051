// Package app builds the parts of the program out of the configuration, and starts and stops them in order. It
// knows every other package except cli, which calls it, and has no rules of its own: for what happens to an event
// read package relay next.
package app

import (
	"runtime/debug"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/migrations"
)

// version is set by the linker where the toolchain cannot know it: in releases and images (scripts/release, deploy/Dockerfile).
var version string

// Version is what the build was given as its version, else what the Go toolchain stamped into the binary: a tag, or the
// commit it was built from.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// MigrationsOf are the migrations that a flow stands on.
func MigrationsOf(flow config.Flow) []migrations.Set {
	if flow.Named {
		return []migrations.Set{migrations.Walpost}
	}
	return []migrations.Set{migrations.Walpost, migrations.Lessons}
}
