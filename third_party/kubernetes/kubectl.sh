#!/bin/sh
# kubectl, in the directory where the user stands. $1: the program.
set -eu
kubectl=$PWD/$1
shift
cd "${BUILD_WORKING_DIRECTORY:-.}"
exec "$kubectl" "$@"
