#!/bin/sh
# images_test.sh IMAGE ARCHIVE...: each archive has the name of its image, and the program that a container of it starts. Programs of
# Debian find their libraries in the image.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$image: $1" >&2
    exit 1
}

# The first word of a list of the configuration.
word() {
    tr -d '\n ' <"$work/layout/$config" | sed -n "s/.*\"$1\":\\[\"\\([^\"]*\\)\".*/\\1/p"
}

blobs() {
    grep -o "blobs/sha256/[0-9a-f]*\|sha256:[0-9a-f]*" "$1" | sed 's|^sha256:|blobs/sha256/|'
}

# Executes a program of Debian with the libraries of the image.
execute() {
    "$work/root/usr/lib/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$work/root/usr/lib" "$@"
}

while [ $# -gt 0 ]; do
    image=$1 archive=$2
    shift 2
    rm -rf "$work/layout" "$work/root"
    mkdir "$work/layout" "$work/root"
    tar -C "$work/layout" -xf "$archive"
    grep -qF "\"$image\"" "$work/layout/index.json" || fail "index.json does not have this name"
    manifest=$(blobs "$work/layout/index.json" | head -1)
    # The configuration comes first, the layers follow from the lowest.
    config=$(tr -d '\n ' <"$work/layout/$manifest" | sed 's/.*"config":{\([^}]*\)}.*/\1/' >"$work/config"; blobs "$work/config")
    for layer in $(tr -d '\n ' <"$work/layout/$manifest" | sed 's/.*"layers":\[\([^]]*\)\].*/\1/' >"$work/layers"; blobs "$work/layers"); do
        tar -C "$work/root" --no-same-owner -xf "$work/layout/$layer"
    done
    program=$(word Entrypoint)
    [ -n "$program" ] || program=$(word Cmd)
    [ -n "$program" ] || fail "it starts no program"
    found=
    for path in "$program" "bin/$program" "usr/bin/$program" "usr/local/bin/$program"; do
        [ ! -x "$work/root/$path" ] || found=$path
    done
    [ -n "$found" ] || fail "its program $program is not in a layer"
    for call in "nginx -v" "dig -v" "curl --version" "ss -V" "wget --version"; do
        name=${call% *}
        [ -e "$work/root/usr/bin/$name" ] || continue
        execute "$work/root/usr/bin/$name" "${call#* }" || fail "$name does not start"
    done
    case $image in
        # The first nsenter in PATH executes the command in the container, and only if the directories of the pods are there.
        */agnhost:*)
            for directory in $(grep -o '"PATH=[^"]*' "$work/layout/$config" | sed 's/.*=//; s/:/ /g'); do
                nsenter=$work/root$directory/nsenter
                [ ! -x "$nsenter" ] || break
            done
            options="--mount=/rootfs/proc/1/ns/mnt --"
            ! "$nsenter" $options true || fail "its nsenter executes a command without the directories of pods"
            mkdir -p "$work/root/rootfs/kubelet/pods"
            ln -sfn "$work/root/rootfs/kubelet" "$work/root/var/lib/kubelet"
            output=$("$nsenter" $options sh -c 'echo "$1"' sh 'b -- c') || fail "its nsenter executes no command"
            [ "$output" = "b -- c" ] || fail "its nsenter passes other arguments: $output"
            ;;
        */nonroot:*) grep -q '"1234:0"' "$work/layout/$config" || fail "its user is not 1234" ;;
        # The shell of busybox executes its own dd, which has no oflag=nocache, whatever PATH has first.
        */glibc-dns-testing:*)
            shell=$work/root$(readlink "$work/root/bin/sh")
            dd=$(PATH=$work/root/usr/bin execute "$shell" -c 'command -v dd') || fail "its shell is not Debian's"
            [ "$dd" = "$work/root/usr/bin/dd" ] || fail "its shell executes $dd, not Debian's dd"
            ;;
        */busybox:*)
            env -i data-1=value PATH="$work/root/bin" "$work/root/bin/sh" -c env | grep -qx data-1=value || fail "its shell drops data-1"
            message=$(PATH="$work/root/bin" "$work/root/bin/sh" -c 'echo >/proc/absent/file' 2>&1) || true
            case $message in *"can't create /proc/absent/file"*) ;; *) fail "its shell has another message: $message" ;; esac
            ;;
        */nginx:*) [ -e "$work/root/etc/nginx/nginx.conf" ] || fail "nginx has no configuration" ;;
    esac
done
