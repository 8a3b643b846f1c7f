#!/bin/sh
# Makes a sysroot in the working directory of packages, each given by name and file: usr/include, and in usr/lib what is
# linked into static programs. The list libraries.txt has package, SHA-256 and path of each file in usr/lib.
#
# usr/lib is one directory, apart from headers: gcc searches it by -B, and would also take GCC 12's own headers from a
# directory `include` in it, which only GCC 12 understands.
set -eu

mkdir -p usr/lib/pkgconfig
: > libraries.txt
while [ $# -gt 0 ]; do
    name=$1 package=$2
    shift 2
    dpkg-deb -x "$package" unpacked
    [ ! -d unpacked/usr/include ] || cp -a unpacked/usr/include usr/
    libraries=unpacked/usr/lib/x86_64-linux-gnu gcc=$(echo unpacked/usr/lib/gcc/x86_64-linux-gnu/*)
    for file in "$libraries"/*.[ao] "$gcc"/crtbegin*.o "$gcc"/crtend*.o "$gcc"/libgcc.a "$gcc"/libgcc_eh.a "$gcc"/libatomic.a "$gcc"/libstdc++.a; do
        [ -f "$file" ] || continue
        to=usr/lib/${file##*/}
        # Newer compilers name it so, in each link.
        [ $to != usr/lib/libatomic.a ] || to=usr/lib/libatomic_asneeded.a
        mv "$file" $to
        # A script of the linker with absolute paths, which in a sandbox, a tree of symbolic links, would be the machine's.
        [ $to != usr/lib/libm.a ] || sed -i 's,/[^ ]*/,,g' $to
        echo "$name $(sha256sum $to)" >> libraries.txt
    done
    [ ! -f $libraries/pkgconfig/libseccomp.pc ] || mv $libraries/pkgconfig/libseccomp.pc usr/lib/pkgconfig/
    rm -rf unpacked
done
