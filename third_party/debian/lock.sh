#!/bin/sh
# Renews the locks of this directory: the newest version of every package that *.packages name, from
# the suites that keep their versions. A lock has a line for each, in the same order.
#   bazel run //third_party/debian:lock
set -eu

here=${BUILD_WORKSPACE_DIRECTORY:?run it with: bazel run //third_party/debian:lock}/third_party/debian
mirror=${GRANARY_DEBIAN_MIRROR:-$(sh "$here/mirror.sh")}
[ -n "$mirror" ] || { echo "lock: apt names no Debian mirror: set GRANARY_DEBIAN_MIRROR" >&2; exit 1; }

new=$(mktemp)
trap 'rm -f "$new"' EXIT
for packages in "$here"/*.packages; do
    lock=${packages%.packages}.lock
    suite=$(sed -n 's/^# suite: //p' "$packages")
    echo "# Written by //third_party/debian:lock. Package, version, architecture, SHA-256, file on the mirror." >"$new"
    grep -v '^#' "$packages" | xargs -d '\n' sh "$here/newest.sh" "$mirror" "$suite" >>"$new"
    cat "$new" >"$lock"
    echo "lock: $(grep -vc '^#' "$lock") packages in ${lock##*/}"
done
