#!/bin/sh
# Formats BUILD, .bzl and Rust files, or checks them. $1: fix or check, $2: buildifier, $3: rustfmt or -, $4: a file in the root
# of the workspace, for a test; `bazel run` sets a variable instead.
set -eu
mode=$1
buildifier=$PWD/$2
rustfmt=$PWD/$3
cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "${4:-}")")}"
find_files() {
    find . -path './bazel-*' -prune -o -path ./target -prune -o -path ./.git -prune -o \( "$@" \) -type f -print0
}
find_build_files() {
    find_files -name BUILD.bazel -o -name '*.BUILD.bazel' -o -name '*.bzl' -o -name '*.MODULE.bazel' -o -name MODULE.bazel
}
[ "$(find_build_files | tr -d -c '\0' | wc -c)" -gt 1 ] || { echo "no BUILD files below $PWD" >&2; exit 1; }
status=0
if [ "$mode" = fix ]; then
    find_build_files | xargs -0 "$buildifier" -mode=fix -lint=fix
else
    find_build_files | xargs -0 "$buildifier" -mode=diff -lint=warn || status=1
fi
if [ "$3" != - ]; then
    if [ "$mode" = fix ]; then set --; else set -- --check; fi
    find_files -name '*.rs' | sed -z "s#^\./#$PWD/#" | xargs -0 "$rustfmt" --edition 2024 "$@" || status=1
fi
[ $status = 0 ] || echo "to format: bazel run //:fmt" >&2
exit $status
