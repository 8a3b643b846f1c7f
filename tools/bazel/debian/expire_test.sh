#!/bin/sh
# What `expire` removes from a cache, and what it keeps: `expire_test.sh EXPIRE`.
set -eu
expire=$1
cache=$TEST_TMPDIR/cache
failed=0

# Makes the cache's tree $1 with a file in a read-only directory; $2 is when it was used.
tree() {
    mkdir -p "$cache/$1/content/read-only"
    echo content >"$cache/$1/content/read-only/file"
    chmod a-w "$cache/$1/content/read-only"
    touch -d "$2" "$cache/$1/.used"
}
server() {
    mkdir -p "$cache/$1/base/server"
    echo "$2" >"$cache/$1/base/server/server.pid.txt"
}
expired() {
    mounts=$1
    shift
    # In this shell, so that `wait` covers what it leaves running.
    (set -- "$cache" "$mounts" "$@" && . "$expire" && wait)
}
kept() {
    for name do [ -e "$cache/$name/content/read-only/file" ] || { echo "$name is gone" >&2; failed=1; }; done
}
gone() {
    for name do [ ! -e "$cache/$name" ] || { echo "$name is still there" >&2; failed=1; }; done
}

mkdir -p "$cache/guests/old" "$cache/guests/new" "$TEST_TMPDIR/machine/content/read-only"
touch -d '13 hours ago' "$cache/guests/old"
touch "$TEST_TMPDIR/machine/content/read-only/file"
: >"$TEST_TMPDIR/none"
true &
dead=$!
wait $dead

old='15 days ago'
for name in root-aaa out-aaa-1.90.0 cargo-bazel-1-aaa rustup/toolchains/1.90.0-x; do tree "$name" "$old"; done
tree root-young '13 days ago'
tree root-mine "$old"
tree root-live "$old"
tree out-live-1.91.0 "$old"
tree rustup/toolchains/1.91.0-x "$old"
tree out-dead-1.92.0 "$old"
tree root-mounted "$old"
tree root-unstamped "$old"
rm "$cache/root-unstamped/.used"
tree disk "$old"
ln -s "$TEST_TMPDIR/machine" "$cache/root-link"
ln -s "$TEST_TMPDIR/machine" "$cache/root-aaa/link"
server out-live-1.91.0 $$
server out-dead-1.92.0 "$dead"
echo "1 2 8:1 / $cache/root-mounted/content rw - ext4 /dev/sda rw" >"$TEST_TMPDIR/mounts"

expired "$TEST_TMPDIR/mounts" "$cache/root-mine" "$TEST_TMPDIR/machine"
gone root-aaa out-aaa-1.90.0 cargo-bazel-1-aaa rustup/toolchains/1.90.0-x out-dead-1.92.0
kept root-young root-mine root-live out-live-1.91.0 rustup/toolchains/1.91.0-x root-mounted root-unstamped disk root-link
[ -e "$TEST_TMPDIR/machine/content/read-only/file" ] || { echo "a link was followed" >&2; failed=1; }
[ ! -e "$TEST_TMPDIR/machine/.used" ] || { echo "a directory outside of the cache was stamped" >&2; failed=1; }
gone expired-*
# A server lives.
[ -e "$cache/guests/old" ] || { echo "a saved guest is gone while tests may run" >&2; failed=1; }

# The server has ended: its own trees were used until now, those that nothing holds go.
echo "$dead" >"$cache/out-live-1.91.0/base/server/server.pid.txt"
touch -c -d "$old" "$cache/root-live/.used" "$cache/root-unstamped/.used"
mv "$cache/root-young" "$cache/expired-1-root-young"
expired "$TEST_TMPDIR/none" "$cache/root-mine"
gone root-live root-mounted root-unstamped guests/old expired-1-root-young
kept out-live-1.91.0 rustup/toolchains/1.91.0-x root-mine disk
[ -d "$cache/guests/new" ] || { echo "a new saved guest is gone" >&2; failed=1; }
exit $failed
