#!/bin/sh
# Runs the long tests of one area, at full numbers, up to 20 minutes on a quiet machine: sh scripts/soak.sh AREA
set -eu
cd "$(dirname "$0")/.."
areas=scripts/soak-areas.txt
tests=$(awk -v area="$1" '$1 == area { names = names (names == "" ? "" : "|") $3 } END { print names }' "$areas")
if [ -z "$tests" ]; then
    echo "soak: no area $1; the areas are: $(awk '/^[a-z]/ { print $1 }' "$areas" | sort -u | tr '\n' ' ')" >&2
    exit 2
fi
packages=$(awk -v area="$1" '$1 == area { print $2 }' "$areas" | sort -u)
# The words of packages are arguments of their own.
# shellcheck disable=SC2086
exec go run ./scripts/gotest -tags soak -run "^($tests)\$" -timeout 1h $packages
