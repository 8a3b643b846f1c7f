"""Rules that build programs of vendored Go modules, offline and static, and the standard library that these share."""

# Omits debug information, which the linker would remove (-s -w). `go build` uses an archive of the standard library
# only if the same compiler has compiled it from the same files with the same flags.
_COMPILER_FLAGS = "-gcflags=all=-dwarf=false"

def _start(ctx):
    """First lines of a script: a toolchain in $work/go, and a directory for a module, $work/src."""
    return [
        "set -eu",
        "root=$PWD",
        "work=$(mktemp -d); trap 'rm -rf $work' EXIT; mkdir $work/go $work/src",
        "tar -xf {} -C $work/go".format(ctx.file._sdk.path),
        "export GOROOT=$work/go GOPATH=$work/path GOCACHE=$work/cache GOTOOLCHAIN=local GOPROXY=off HOME=$work",
        "export GOFLAGS='-mod=vendor -trimpath -buildvcs=false' PATH=$GOROOT/bin:/usr/bin:/bin",
        # The compiler's garbage collection takes a sixth of its CPU time. With these settings it only starts when
        # memory becomes scarce.
        "export GOGC=off GOMEMLIMIT=3GiB",
        # `go install` writes archives of the standard library to $GOROOT/pkg, and `go build` looks for them there.
        "export GODEBUG=installgoroot=all",
    ]

def _go_standard_library_impl(ctx):
    archive = ctx.actions.declare_file(ctx.label.name + ".tar")
    ctx.actions.run_shell(
        inputs = [ctx.file._sdk],
        outputs = [archive],
        command = "\n".join(_start(ctx) + [
            "export CGO_ENABLED=0",
            # A separate module, so that `go` does not find one in a parent directory.
            "cd $work/src && echo 'module none' > go.mod",
            # List importable packages with their dependencies, because `go install` does not install dependencies.
            "public=$(go list std | grep -vE '(^|/)(internal|vendor)(/|$)')",
            "packages=$(go list -deps $public)",
            "go install {} $packages".format(_COMPILER_FLAGS),
            "tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a+rX,u+w,go-w -C $GOROOT -cf $root/{} pkg/$(go env GOOS)_$(go env GOARCH)".format(archive.path),
        ]),
        mnemonic = "GoStandardLibrary",
        progress_message = "Building Go's standard library (a minute, once)",
        execution_requirements = {"cpu:2": ""},
        use_default_shell_env = False,
    )
    return [DefaultInfo(files = depset([archive]))]

go_standard_library = rule(
    implementation = _go_standard_library_impl,
    doc = "Go's standard library, compiled for programs without C, as one archive with the paths that it has in $GOROOT.",
    attrs = {
        "_sdk": attr.label(default = "@go_sdk//:sdk.tar", allow_single_file = True),
    },
)

# Fails before the compiler starts if the file to replace has changed.
_GUARD = """\
found=$(sha256sum < vendor/{path} | cut -d' ' -f1)
if [ "$found" != {want} ]; then
    echo "vendor/{path}: the file that the overlay replaces has changed" >&2
    echo "  wanted sha256 {want}" >&2
    echo "  found  sha256 $found" >&2
    echo "compare it with the overlay, then put the new digest into the overlay_digests of {label}" >&2
    exit 1
fi"""

# Replaces each occurrence of a text in a vendored file.
_EDIT = """\
file=vendor/{path} old='{old}' new='{new}'
if ! grep -qF -- "$old" $file; then
    echo "$file: the text that the build replaces is missing: $old" >&2
    echo "read the file, then correct the edits of {label}" >&2
    exit 1
fi
text=$(cat $file)
printf '%s\n' "${{text//"$old"/"$new"}}" > $file"""

def _go_programs_impl(ctx):
    outputs = {name: ctx.actions.declare_file(name) for name in ctx.attr.programs}
    lines = _start(ctx) + [
        "tar -xf {} -C $work/go".format(ctx.file._standard_library.path),
        "tar -xf {} -C $work/src".format(ctx.file.src.path),
        "cd $work/src",
    ]
    sysroot = []
    if ctx.attr.cgo:
        sysroot = ctx.files._sysroot
        lines += [
            "export CC=$root/{}".format(ctx.file._cc.path),
            "export PKG_CONFIG_SYSROOT_DIR=$root/{}".format(ctx.file._cc.dirname),
            "export PKG_CONFIG_LIBDIR=$PKG_CONFIG_SYSROOT_DIR/usr/lib/pkgconfig",
        ]
    overlay = {}
    for target, path in ctx.attr.overlay.items():
        if path not in ctx.attr.overlay_digests:
            fail("overlay of {}: its path has no digest in overlay_digests".format(path))
        lines.append(_GUARD.format(path = path, want = ctx.attr.overlay_digests[path], label = ctx.label))
        file = target[DefaultInfo].files.to_list()[0]

        # Use a separate directory, so that an error names the vendored path.
        lines.append("mkdir -p $work/overlay/$(dirname {path}) && cp $root/{file} $work/overlay/{path}".format(path = path, file = file.path))
        overlay[path] = file
    for path, texts in ctx.attr.edits.items():
        if len(texts) != 2 or "'" in texts[0] + texts[1]:
            fail("edits of {}: an old and a new text without single quotes are needed".format(path))
        lines.append(_EDIT.format(path = path, old = texts[0], new = texts[1], label = ctx.label))
    for path in ctx.attr.removed:
        lines.append("rm $work/src/vendor/" + path)
    if overlay:
        lines.append("{ printf '{\"Replace\":{'; printf '%s' \"" + ",".join(
            ["\\\"$work/src/vendor/{p}\\\":\\\"$work/overlay/{p}\\\"".format(p = p) for p in overlay],
        ) + "\"; printf '}}'; } > $work/overlay.json")
    for name, package in ctx.attr.programs.items():
        cgo = name in ctx.attr.cgo
        tags = ["seccomp", "netgo", "osusergo"] if cgo else ctx.attr.build_tags
        lines.append("CGO_ENABLED={} go build {} {} {} -ldflags '-s -w -buildid= {}' -o $root/{} {}".format(
            1 if cgo else 0,
            _COMPILER_FLAGS,
            "-tags '{}'".format(" ".join(tags)) if tags else "",
            "-overlay $work/overlay.json" if overlay else "",
            ("-linkmode external -extldflags -static " if cgo else "") + " ".join(["-X " + x for x in ctx.attr.stamps]),
            outputs[name].path,
            package,
        ))
    ctx.actions.run_shell(
        inputs = [ctx.file.src, ctx.file._sdk, ctx.file._standard_library] + overlay.values() + sysroot,
        outputs = outputs.values(),
        command = "\n".join(lines),
        mnemonic = "GoPrograms",
        progress_message = "Building {} (minutes, once)".format(", ".join(outputs.keys())),
        execution_requirements = {"cpu:2": ""},
        use_default_shell_env = False,
    )
    return [
        DefaultInfo(files = depset(outputs.values())),
        OutputGroupInfo(**{name.replace("-", "_"): depset([f]) for name, f in outputs.items()}),
    ]

go_programs = rule(
    implementation = _go_programs_impl,
    doc = "Programs of one vendored Go module in one action, because they share most of their packages.",
    attrs = {
        "build_tags": attr.string_list(doc = "Build tags of the programs without C."),
        "cgo": attr.string_list(doc = "Programs that need a C compiler; linked statically all the same, with the libraries of @sysroot."),
        "edits": attr.string_list_dict(doc = "Vendored file -> a text in it, and the text that replaces it; a missing text fails the build."),
        "overlay": attr.label_keyed_string_dict(allow_files = [".go"], doc = "File of ours -> vendored file that it replaces."),
        "overlay_digests": attr.string_dict(doc = "Vendored file -> its SHA-256; another one fails the build."),
        "programs": attr.string_dict(mandatory = True, doc = "Name -> Go package."),
        "removed": attr.string_list(doc = "Vendored files to leave out, by name or pattern. One without a file fails the build."),
        "src": attr.label(mandatory = True, allow_single_file = [".tar"], doc = "The vendored module, an archive."),
        "stamps": attr.string_list(doc = "Values for the linker's -X."),
        "_cc": attr.label(default = "@sysroot//:cc", allow_single_file = True),
        "_sdk": attr.label(default = "@go_sdk//:sdk.tar", allow_single_file = True),
        "_standard_library": attr.label(default = "//third_party/go:standard_library", allow_single_file = [".tar"]),
        "_sysroot": attr.label(default = "@sysroot//:all", allow_files = True),
    },
)
