#!/bin/sh
# Compares pairs of files: digest.sh FILE AGAIN [FILE AGAIN]...
set -eu
differ=0
while [ $# -gt 0 ]; do
    # The same path: the build has made it once, and there is nothing to compare.
    if [ "$(realpath "$1")" = "$(realpath "$2")" ]; then
        echo "$1 and $2 are one file: it was not built again" >&2
        differ=1
    elif cmp "$1" "$2"; then
        echo "$(sha256sum <"$1" | cut -d' ' -f1)  ${1##*/}"
    else
        echo "${1##*/} is another one when it is built again: something in it depends on time, order or chance" >&2
        differ=1
    fi
    shift 2
done
exit $differ
