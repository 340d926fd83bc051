#!/bin/sh
# Runs the tests once per version of Postgres and closes with a line for each:
#
#	Postgres 14.23: 1012 passed, 0 failed, 0 skipped
#
# The versions are the arguments, all supported ones without any; PKG and ARGS go to go test. Tests whose names match SKIP
# are left out: they need no Postgres, and "make test" runs them. The servers come from get-postgres.sh. A failed or
# skipped test fails the run, after the other versions have run.
set -u

cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- 14 15 16 17 18

results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
trap 'exit 1' HUP INT TERM
failed=0
for major in "$@"; do
	bin=$(sh scripts/get-postgres.sh "$major") || exit 1
	version=$("$bin/postgres" --version) || exit 1
	version=${version##* }
	printf '\nPostgres %s\n' "$version"
	# CI=true: a test that is skipped on one version proves nothing about it. -count=1: nor does one of last week.
	# shellcheck disable=SC2086 # PKG and ARGS are lists
	{ CI=true WALPOST_TEST_PG_BIN=$bin WALPOST_TEST_DATABASE_URL='' go run ./scripts/gotest -count=1 -p 2 -timeout 40m ${SKIP:+-skip "$SKIP"} ${ARGS:-} ${PKG:-./...} 2>&1 ||
		: >"$results/failed-$major"; } | tee "$results/output"
	[ ! -e "$results/failed-$major" ] || failed=1
	counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$results/output" | tail -n 1)
	printf 'Postgres %s: %s\n' "$version" "${counts:-did not run}" >>"$results/summary"
done
printf '\n'
cat "$results/summary"
exit "$failed"
