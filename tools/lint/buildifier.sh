#!/bin/sh
# Every BUILD and .bzl file is formatted and has no lint. $1: check or fix, $2: buildifier, $3: MODULE.bazel.
set -eu
buildifier=$PWD/$2
workspace=$(dirname "$(readlink -f "$3")")
cd "$workspace"
files=$(find . -path './bazel-*' -prune -o -path ./target -prune -o -path ./.git -prune -o \
    \( -name BUILD.bazel -o -name '*.BUILD.bazel' -o -name '*.bzl' -o -name '*.MODULE.bazel' -o -name MODULE.bazel \) -type f -print)
[ -n "$files" ] || { echo "buildifier: no file found below $workspace" >&2; exit 1; }
if [ "$1" = fix ]; then
    # shellcheck disable=SC2086
    exec "$buildifier" -mode=fix -lint=fix $files
fi
# shellcheck disable=SC2086
"$buildifier" -mode=diff -lint=warn $files || {
    echo "to format: bazel run //:fmt" >&2
    exit 1
}
echo "$(echo "$files" | wc -l) files are formatted"
