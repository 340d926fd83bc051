#!/bin/sh
# Makes sure that this machine can run a private Postgres server, for the demo and for tests. Where the
# server binaries are there already, it says nothing and does nothing.
#
# Else it installs them with the system's package manager: without a terminal or with CI=true it just
# does, if it may (root, or sudo that asks for no password); at a terminal it shows the command and asks
# once. No server is started and nothing existing is changed by this script; some packages start one.
#
# The places are those of internal/pgserver/find.go. Docker alone serves most tests, but neither the
# demo nor the tests that crash or freeze a server.
set -eu

oldest=14 # the oldest major version that walpost supports

say() { printf '%s\n' "$*" >&2; }

complete() { [ -x "$1/initdb" ] && [ -x "$1/postgres" ]; }

# server_bin prints the folder of the server binaries.
server_bin() {
	if on_path=$(command -v initdb 2>/dev/null); then
		bin=$(dirname "$(readlink -f "$on_path" 2>/dev/null || printf '%s' "$on_path")")
		if complete "$bin"; then printf '%s\n' "$bin"; return 0; fi
	fi
	if bin=$(pg_config --bindir 2>/dev/null) && complete "$bin"; then printf '%s\n' "$bin"; return 0; fi
	for bin in /usr/lib/postgresql/*/bin /usr/libexec/postgresql* /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/home/linuxbrew/.linuxbrew/opt/postgresql*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin /usr/local/pgsql/bin; do
		if complete "$bin"; then printf '%s\n' "$bin"; return 0; fi
	done
	return 1
}

docker_runs() { command -v docker >/dev/null 2>&1 && docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# choose sets install to the command of the package manager, and root to whether it wants root.
choose() {
	root=yes
	if command -v apt-get >/dev/null 2>&1; then
		install='apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql'
	elif command -v dnf >/dev/null 2>&1; then
		install='dnf install -q -y --setopt=install_weak_deps=False postgresql-server postgresql-contrib'
	elif command -v yum >/dev/null 2>&1; then
		install='yum install -q -y postgresql-server postgresql-contrib'
	elif command -v apk >/dev/null 2>&1; then
		install='apk add -q postgresql'
	elif command -v pacman >/dev/null 2>&1; then
		install='pacman -S --noconfirm --needed postgresql'
	elif command -v brew >/dev/null 2>&1; then
		install='brew install -q postgresql@17' root=no
	else
		install=''
	fi
}

# without_postgres ends the script: with what is left to type, or with Docker as the second best.
without_postgres() {
	if docker_runs; then
		say "No Postgres server binaries; tests use Docker, except those that need a server of their own. $1"
		exit 0
	fi
	say "Postgres is needed, and it is not here: no initdb and postgres in PATH, by pg_config or where packages put them, and no Docker."
	say "$1"
	say "Or name a place: WALPOST_TEST_PG_BIN=/path/to/postgres/bin, or for tests a running server: WALPOST_TEST_DATABASE_URL=postgres://…"
	exit 1
}

if [ -n "${WALPOST_TEST_PG_BIN:-}" ] || [ -n "${WALPOST_TEST_DATABASE_URL:-}" ]; then exit 0; fi
if server_bin >/dev/null; then exit 0; fi

choose
if [ -z "$install" ]; then
	without_postgres "None of apt-get, dnf, yum, apk, pacman and brew is here either: install PostgreSQL $oldest or newer by hand."
fi

command="sh -c '$install'"
allowed=yes
if [ "$root" = yes ] && [ "$(id -u)" -ne 0 ]; then
	command="sudo $command"
	if ! command -v sudo >/dev/null 2>&1; then
		without_postgres "Type as root: $install"
	fi
	# Without a person to type it, a password cannot be asked for.
	sudo -n true 2>/dev/null || allowed=no
fi

if [ "${CI:-}" != true ] && [ -t 0 ] && [ -t 2 ]; then
	say "No Postgres server binaries found. This installs them:"
	say "  $command"
	printf 'Run it? [y/N] ' >&2
	read -r answer || answer=
	case $answer in
	y | Y | yes) ;;
	*) without_postgres "Later: $command" ;;
	esac
elif [ "$allowed" = no ]; then
	without_postgres "Type: $command"
else
	say "No Postgres server binaries found; installing them: $command"
fi

# Output of the package manager goes to stderr: stdout belongs to the caller.
eval "$command" >&2 || without_postgres "This failed: $command"

bin=$(server_bin) || without_postgres "This ran, but brought no initdb and postgres: $command"
version=$("$bin/postgres" --version)
major=$(printf '%s' "$version" | sed 's/[^0-9]*\([0-9]*\).*/\1/')
if [ "$major" -lt "$oldest" ]; then
	without_postgres "The package manager brought $version; walpost needs PostgreSQL $oldest or newer, see https://www.postgresql.org/download/"
fi
