#!/bin/sh
# The compiler driver of the target's C toolchain: the machine's gcc, with headers and libraries of pinned Debian packages,
# which lie beside this script.
#
# What it links carries the section .granary.libraries: a line of SHA-256 and path for each of those files that the
# linker read. A link that reads a library of the machine fails, since gcc looks into its own directories too.
set -eu
export PATH=/usr/bin:/bin
sysroot=${0%/*}

out='' previous='' compiles=''
for argument do
    case $argument in
        -c | -S | -E | -M | -MM | -fsyntax-only) compiles=yes ;;
    esac
    [ "$previous" != -o ] || out=$argument
    previous=$argument
done
if [ -n "$compiles" ] || [ -z "$out" ]; then
    exec gcc --sysroot="$sysroot" "$@"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# -B is searched before gcc's own directories, for startup files and for libraries.
gcc --sysroot="$sysroot" -B"$sysroot/usr/lib" "$@" -Wl,--dependency-file="$work/read"

# A rule of make: `OUT: \`, then a file a line, after a space or two.
sed -n 's|^  *||; T; s| \\$||; p' "$work/read" | sort -u >"$work/files"
while read -r file; do
    case $file in
        *.rlib) ;;
        "$sysroot"/*) (cd "$sysroot" && sha256sum "${file#"$sysroot/"}") ;;
        /usr/* | /lib*)
            rm -f "$out"
            echo "cc: $out: the linker took $file of this machine: name the Debian package that has it in third_party/debian/sysroot.packages" >&2
            exit 1
            ;;
    esac
done <"$work/files" >"$work/libraries"
objcopy --add-section ".granary.libraries=$work/libraries" "$out"
