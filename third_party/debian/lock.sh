#!/bin/sh
# Renews the locks of this directory: the newest version of every package that *.packages name, from the suite that the
# comment above it names. A lock has a line for each, in the same order.
#   bazel run //third_party/debian:lock [-- NAME...]   with names: only these locks
set -eu

here=${BUILD_WORKSPACE_DIRECTORY:?run it with: bazel run //third_party/debian:lock}/third_party/debian
mirror=$(sh "$here/mirror.sh")
security=${GRANARY_DEBIAN_SECURITY_MIRROR:-$(sh "$here/mirror.sh" security)}
[ -n "$mirror" ] || { echo "lock: apt names no Debian mirror: set GRANARY_DEBIAN_MIRROR" >&2; exit 1; }

[ $# -gt 0 ] || set -- $(cd "$here" && ls -- *.packages)
new=$(mktemp)
trap 'rm -f "$new" "$new.patterns" "$new.found"' EXIT
for name do
    packages=$here/${name%.packages}.packages
    lock=${packages%.packages}.lock
    echo "# Written by //third_party/debian:lock. Package, version, architecture, SHA-256, file on the mirror." >"$new"
    if grep -qx '# alternatives' "$packages"; then
        # Read by repositories.bzl and current.sh.
        echo "# alternatives, $(date -u +%Y-%m-%d)" >>"$new"
    fi
    for suite in $(sed -n 's/^# suite: //p' "$packages"); do
        # The lines from this suite to the next.
        awk -v suite="$suite" '/^# suite: / { on = $3 == suite } /^[^#]/ && on' "$packages" >"$new.patterns"
        case $suite in
            *-security) from=$security prefix=security: ;;
            *) from=$mirror prefix= ;;
        esac
        # Not a pipe, whose status would be that of sed.
        xargs -d '\n' sh "$here/newest.sh" "$from" "$suite" <"$new.patterns" >"$new.found"
        sed "s/ pool/ ${prefix}pool/" "$new.found" >>"$new"
    done
    cat "$new" >"$lock"
    echo "lock: $(grep -vc '^#' "$lock") packages in ${lock##*/}"
done
