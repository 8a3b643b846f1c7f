#!/bin/sh
# Prints what a suite of a mirror has now, as lines of a lock: of the last name that each pattern matches, the newest version.
# Only apt's own, signed indexes decide.
#   newest.sh MIRROR SUITE PATTERN...
set -eu
mirror=$1
suite=$2
shift 2

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
: >"$state/status"
# One suite alone, so that no other takes its place.
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$state/sources.list"
apt() {
    program=$1
    shift
    "$program" -qq -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State="$state" \
        -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root "$@"
}
apt apt-get update --error-on=any
for pattern do
    name=$(apt apt-cache search --names-only "^$pattern\$" | cut -d' ' -f1 | sort -V | tail -1)
    [ -n "$name" ] || { echo "newest: no package of $suite matches $pattern" >&2; exit 1; }
    apt apt-cache show "$name" | awk -v want="$name" '
        /^Package:/ { p = $2 } /^Version:/ { v = $2 } /^Architecture:/ { a = $2 }
        /^Filename:/ { f = $2 } /^SHA256:/ { s = $2 }
        /^$/ { if (p == want && !done) { print p, v, a, s, f; done = 1 } }
        END { if (p == want && !done) { print p, v, a, s, f; done = 1 }; exit !done }' ||
        { echo "newest: no record of $name" >&2; exit 1; }
done
