#!/bin/sh
# Compares pairs of files: digest.sh FILE AGAIN [FILE AGAIN]...
set -eu
differ=0
while [ $# -gt 0 ]; do
    # The same path: the file was built once, and there is nothing to compare.
    if [ "$(realpath "$1")" = "$(realpath "$2")" ]; then
        echo "$1 and $2 are the same file: it was not built twice" >&2
        differ=1
    elif cmp "$1" "$2"; then
        echo "$(sha256sum <"$1" | cut -d' ' -f1)  ${1##*/}"
    else
        echo "the two builds of ${1##*/} differ: something in it depends on time, order or chance" >&2
        differ=1
    fi
    shift 2
done
exit $differ
