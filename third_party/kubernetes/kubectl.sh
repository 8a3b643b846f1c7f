#!/bin/sh
# kubectl, in the directory where the user stands. $1: the program of all Kubernetes programs.
set -eu
kube=$PWD/$1
shift
cd "${BUILD_WORKING_DIRECTORY:-.}"
exec "$kube" kubectl "$@"
