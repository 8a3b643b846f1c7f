#!/bin/sh
# Formats BUILD, .bzl and Rust files. $1: buildifier, $2: rustfmt.
set -eu
buildifier=$PWD/$1
rustfmt=$PWD/$2
cd "${BUILD_WORKSPACE_DIRECTORY:?run it with: bazel run //:fmt}"
find . -path './bazel-*' -prune -o -path ./target -prune -o -path ./.git -prune -o \
    \( -name BUILD.bazel -o -name '*.BUILD.bazel' -o -name '*.bzl' -o -name '*.MODULE.bazel' -o -name MODULE.bazel \) -type f -print0 |
    xargs -0 "$buildifier" -mode=fix -lint=fix
find . -path './bazel-*' -prune -o -path ./target -prune -o -name '*.rs' -type f -print0 |
    sed -z "s#^\./#$PWD/#" | xargs -0 "$rustfmt" --edition 2024
