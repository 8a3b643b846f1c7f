#!/bin/sh
# Renews the locks of this directory: the newest version of every package that *.packages name, from
# the suites that keep their versions. Only apt's own, signed indexes decide.
#   bazel run //third_party/debian:lock
set -eu

here=${BUILD_WORKSPACE_DIRECTORY:?run it with: bazel run //third_party/debian:lock}/third_party/debian
mirror=${GRANARY_DEBIAN_MIRROR:-$(sh "$here/mirror.sh")}
[ -n "$mirror" ] || { echo "lock: apt names no Debian mirror: set GRANARY_DEBIAN_MIRROR" >&2; exit 1; }

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
: >"$state/status"
apt() {
    program=$1
    shift
    "$program" -qq -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State="$state" \
        -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root "$@"
}
# One suite at a time, so that none takes the place of another. $1: its name.
use() {
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$state/sources.list"
    rm -rf "$state/lists" "$state/cache"
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    apt apt-get update
}
for packages in "$here"/*.packages; do
    lock=${packages%.packages}.lock
    use "$(sed -n 's/^# suite: //p' "$packages")"
    {
        echo "# Written by //third_party/debian:lock. Package, version, architecture, SHA-256, file on the mirror."
        grep -v '^#' "$packages" | while read -r pattern; do
            name=$(apt apt-cache search --names-only "^$pattern\$" | cut -d' ' -f1 | sort -V | tail -1)
            [ -n "$name" ] || { echo "lock: no package matches $pattern" >&2; exit 1; }
            apt apt-cache show "$name" | awk -v want="$name" '
                /^Package:/ { p = $2 } /^Version:/ { v = $2 } /^Architecture:/ { a = $2 }
                /^Filename:/ { f = $2 } /^SHA256:/ { s = $2 }
                /^$/ { if (p == want && !done) { print p, v, a, s, f; done = 1 } }
                END { if (p == want && !done) { print p, v, a, s, f; done = 1 }; exit !done }' ||
                { echo "lock: no record of $name" >&2; exit 1; }
        done
    } >"$state/lock"
    mv "$state/lock" "$lock"
    echo "lock: $(grep -vc '^#' "$lock") packages in ${lock##*/}"
done
