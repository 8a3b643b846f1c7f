#!/bin/sh
# Fails if the first alternative of a lock is older than 60 days and its suite offers a newer one. Without a connection to the
# mirror, it reports nothing.
#   current.sh LOCK PACKAGES MIRROR_SH NEWEST_SH [TODAY]
set -eu
lock=$1 packages=$2 mirror=$3 newest=$4 today=${5:-$(date -u +%Y-%m-%d)}

pinned=$(sed -n 's/^# alternatives, //p' "$lock")
[ -n "$pinned" ] || { echo "$lock has no line with the date of its alternatives" >&2; exit 1; }
days=$((($(date -u -d "$today" +%s) - $(date -u -d "$pinned" +%s)) / 86400))
[ "$days" -gt 60 ] || exit 0

suite=$(sed -n 's/^# suite: //p' "$packages" | head -n 1)
pattern=$(grep -v '^#' "$packages" | head -n 1)
security=${GRANARY_DEBIAN_SECURITY_MIRROR:-$(sh "$mirror" security)}
[ -n "$security" ] || exit 0
offered=$(sh "$newest" "$security" "$suite" "$pattern" 2>/dev/null | cut -d' ' -f1,2) || exit 0
current=$(grep -v '^#' "$lock" | head -n 1 | cut -d' ' -f1,2)
if [ -n "$offered" ] && [ "$offered" != "$current" ]; then
    echo "$lock is $days days old: it pins $current, and $suite offers $offered. Run ./bazelw run //third_party/debian:lock -- kernel" >&2
    exit 1
fi
