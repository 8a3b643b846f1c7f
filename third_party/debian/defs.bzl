"""Rules that take files out of pinned Debian packages."""

# First lines of each action.
_WORK = """\
set -eu
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"""

_UNPACK = _WORK + """\
for file in {files}; do
    case $file in
        *.tar) tar --no-same-owner -C "$work" -xf "$file" ;;
        *) dpkg-deb -x "$file" "$work" ;;
    esac
done
"""

# Unpacks the files of a kernel_archive that modprobe reads. All modules together have a hundred megabytes, so only the
# needed ones are unpacked. modprobe requires the files of a module and of its dependencies to exist, but does not read
# them.
_UNPACK_INDEX = _WORK + """\
tar --no-same-owner -C "$work" --wildcards -xf {archive} 'lib/modules/*/modules.*'
( cd "$work"/lib/modules/*; cut -d: -f1 modules.dep > "$work/all"
  xargs dirname < "$work/all" | sort -u | xargs mkdir -p; xargs touch < "$work/all" )
"""

def _unpack(files):
    return _UNPACK.format(files = " ".join([file.path for file in files]))

def _run(ctx, files, outputs, lines, mnemonic, what, unpack = None):
    ctx.actions.run_shell(
        inputs = files,
        outputs = outputs,
        command = (unpack or _unpack(files)) + "\n".join(lines),
        mnemonic = mnemonic,
        progress_message = what,
        use_default_shell_env = True,
    )

# Packs reproducibly: the same packages result in the same bytes.
_PACK = "tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C \"$work\" -cf {} {}"

def _debian_archive_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".tar")
    _run(ctx, ctx.files.packages, [out], [_PACK.format(out.path, ".")], "DebianArchive", "Unpacking packages for %{label}")
    return [DefaultInfo(files = depset([out]))]

debian_archive = rule(
    implementation = _debian_archive_impl,
    doc = "What many targets take out of the same packages, decompressed once for all of them.",
    attrs = {
        "packages": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "The packages."),
    },
)

def _debian_file_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name)
    _run(ctx, [ctx.file.package], [out], ["cp \"$work/{}\" {}".format(ctx.attr.path, out.path)], "DebianFile", "Unpacking %{label}")
    return [DefaultInfo(files = depset([out]))]

debian_file = rule(
    implementation = _debian_file_impl,
    doc = "One file of a package.",
    attrs = {
        "package": attr.label(mandatory = True, allow_single_file = [".deb"], doc = "The package."),
        "path": attr.string(mandatory = True, doc = "The file's path in it, without a slash at the beginning."),
    },
)

def _debian_certificates_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".crt")
    _run(ctx, ctx.files.package, [out], [
        "find \"$work/usr/share/ca-certificates/mozilla\" -name '*.crt' | LC_ALL=C sort | xargs cat > {}".format(out.path),
    ], "DebianCertificates", "Reading the public CAs")
    return [DefaultInfo(files = depset([out]))]

debian_certificates = rule(
    implementation = _debian_certificates_impl,
    doc = "The CAs of Debian's ca-certificates in one file, which the package itself writes when it is installed.",
    attrs = {"package": attr.label(mandatory = True, allow_files = [".deb"], doc = "The package.")},
)

def _kernel_image_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name)
    _run(ctx, ctx.files.packages, [out], ["cp \"$work\"/boot/vmlinuz-* {}".format(out.path)], "KernelImage", "Unpacking the kernel")
    return [DefaultInfo(files = depset([out]))]

kernel_image = rule(
    implementation = _kernel_image_impl,
    doc = "The kernel's bootable file.",
    attrs = {"packages": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "The kernel's package.")},
)

def _kernel_archive_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".tar")
    _run(ctx, ctx.files.packages, [out], [
        "depmod -b \"$work\" \"$(ls \"$work/lib/modules\")\"",
        _PACK.format(out.path, "lib/modules"),
    ], "KernelArchive", "Unpacking the kernel's modules")
    return [DefaultInfo(files = depset([out]))]

kernel_archive = rule(
    implementation = _kernel_archive_impl,
    doc = "The kernel's modules and what depends on what among them (depmod reads all of them: seconds), once for all targets.",
    attrs = {"packages": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "The kernel's package.")},
)

def _kernel_modules_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    aliases = []
    if ctx.attr.by_device:
        # The kernel decompresses modules (CONFIG_MODULE_DECOMPRESS).
        suffix, put = "", "cp \"$file\""
        aliases = [
            "awk -v modules=\"{}\" '".format(" ".join(ctx.attr.modules)),
            "  BEGIN { gsub(/-/, \"_\", modules); n = split(modules, all, \" \"); for (i = 1; i <= n; i++) wanted[all[i]] = 1 }",
            "  $1 == \"alias\" && $NF in wanted { sub(/^alias /, \"\"); print }",
            "' \"$work/lib/modules/$version/modules.alias\" > {}/aliases".format(out.path),
        ]
    else:
        suffix, put = ".xz", "case $file in *.xz) xz -dc \"$file\" ;; *) cat \"$file\" ;; esac >"

    # modprobe also resolves soft dependencies (crc32c for xfs) and prints files in the order of loading. It prints
    # built-in modules as `builtin`; they need no file.
    _run(ctx, [ctx.file.kernel], [out], [
        "version=$(ls \"$work/lib/modules\")",
        # The empty directory keeps modprobe from reading settings of the machine or of the build root.
        "mkdir \"$work/none\"; : > \"$work/depends\"; : > {}/catalog".format(out.path),
        "for module in {}; do".format(" ".join(ctx.attr.modules)),
        "  modprobe -C \"$work/none\" -d \"$work\" -S \"$version\" --show-depends \"$module\" > \"$work/one\" || {",
        "    echo \"{}: kernel $version has no module $module\" >&2; exit 1; }}".format(ctx.label),
        "  cat \"$work/one\" >> \"$work/depends\"",
        "  awk '$1 == \"insmod\" && !seen[$2]++ { print $2 }' \"$work/one\" > \"$work/needed\"",
        "  { printf %s \"$module\"",
        "    while read -r file; do name=${{file##*/}}; printf ' %s' \"${{name%{}}}\"; done < \"$work/needed\"".format(suffix),
        "    echo; }} >> {}/catalog".format(out.path),
        "done",
        "awk '$1 == \"insmod\" && !seen[$2]++ { print $2 }' \"$work/depends\" > \"$work/files\"",
        "sed \"s|^$work/||\" \"$work/files\" > \"$work/members\"",
        "tar --no-same-owner -C \"$work\" -xf {} -T \"$work/members\"".format(ctx.file.kernel.path),
        ": > {}/order".format(out.path),
        "while read -r file; do",
        "  name=${{file##*/}}; name=${{name%{}}}".format(suffix),
        "  {} {}/\"$name\"".format(put, out.path),
        "  case $name in",
    ] + [
        "    {}.ko*) name=\"$name {}\" ;;".format(module, text)
        for module, text in ctx.attr.parameters.items()
    ] + [
        "  esac",
        "  echo \"$name\" >> {}/order".format(out.path),
        "done < \"$work/files\"",
    ] + aliases, "KernelModules", "Unpacking kernel modules for %{label}", _UNPACK_INDEX.format(archive = ctx.file.kernel.path))
    return [DefaultInfo(files = depset([out]))]

kernel_modules = rule(
    implementation = _kernel_modules_impl,
    doc = """A directory of kernel modules with all that they depend on, unpacked, the file `order` that lists them with their parameters in the order of loading, and the file `catalog` that lists the files of each of `modules`.

With `by_device`, the modules stay compressed, and the file `aliases` lists the devices of `modules`.""",
    attrs = {
        "by_device": attr.bool(doc = "Whether the modules are drivers, which are loaded for the devices that a machine has."),
        "kernel": attr.label(default = "//third_party/debian:kernel_modules", allow_single_file = [".tar"], doc = "A kernel_archive."),
        "modules": attr.string_list(mandatory = True, doc = "Modules by name."),
        "parameters": attr.string_dict(doc = "Parameters by module (the name of its file without .ko), such as \"max_loop=8\"."),
    },
)

def _debian_tree_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    _run(ctx, ctx.files.packages, [out], [
        # Move files to the paths of a merged /usr.
        "for d in bin sbin lib lib64; do",
        "  [ -d \"$work/$d\" ] || continue",
        "  mkdir -p \"$work/usr/$d\" && cp -a \"$work/$d/.\" \"$work/usr/$d/\"",
        "done",
        "mkdir -p {}/bin {}/lib".format(out.path, out.path),
        "for program in {}; do".format(" ".join(ctx.attr.programs)),
        "  file=$(ls \"$work/usr/bin/$program\" \"$work/usr/sbin/$program\" 2>/dev/null | head -1)",
        "  [ -n \"$file\" ] || { echo \"%s: no package has the program $program\" >&2; exit 1; }" % ctx.label,
        "  cp -L \"$file\" {}/bin/".format(out.path),
        "done",
        # The loader's own closure over what the programs name, so that nothing else comes along.
        "loader=$(readlink -f \"$work\"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)",
        "libs=\"$work/usr/lib/x86_64-linux-gnu\"",
        "cp -L \"$loader\" {}/lib/ld-linux-x86-64.so.2".format(out.path),
        "for program in {}/bin/*; do".format(out.path),
        "  \"$loader\" --inhibit-cache --library-path \"$libs\" --list \"$program\" > \"$work/list\"",
        "  ! grep 'not found' \"$work/list\" || {{ echo \"{}: $program lacks a library: name its package\" >&2; exit 1; }}".format(ctx.label),
        "  awk '$2 == \"=>\" { print $3 }' \"$work/list\" | while read -r lib; do",
        "    case $lib in \"$work\"/*) cp -L \"$lib\" {}/lib/ ;; *) echo \"$lib is not of a pinned package\" >&2; exit 1 ;; esac".format(out.path),
        "  done",
        "done",
        "chmod 0755 {}/bin/* {}/lib/*".format(out.path, out.path),
    ], "DebianTree", "Unpacking Debian programs for %{label}")
    return [DefaultInfo(files = depset([out]))]

debian_tree = rule(
    implementation = _debian_tree_impl,
    doc = """Programs of Debian with the libraries that they load: a directory with `bin` and `lib`.

The loader is lib/ld-linux-x86-64.so.2; a root that holds the tree as /usr has a link lib64 -> usr/lib and gives LD_LIBRARY_PATH or the loader's default path /lib64.""",
    attrs = {
        "packages": attr.label_list(mandatory = True, allow_files = [".deb", ".tar"], doc = "Packages of the programs and libraries, or a debian_archive of them."),
        "programs": attr.string_list(mandatory = True, doc = "Programs by name."),
    },
)

def _debian_layer_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".tar")
    _run(ctx, [ctx.file.tree], [out], [
        # All users must be able to read the root directory of the image.
        "umask 022; chmod 0755 \"$work\"",
        "mkdir \"$work/usr\"; cp -rL {tree}/bin {tree}/lib \"$work/usr\"".format(tree = ctx.file.tree.path),
        "chmod -R u=rwX,go=rX \"$work/usr\"",
        # Path of the loader in the programs.
        "ln -s usr/lib \"$work/lib64\"",
        _PACK.format(out.path, "."),
    ], "DebianLayer", "Creating the layer %{label}", _WORK)
    return [DefaultInfo(files = depset([out]))]

debian_layer = rule(
    implementation = _debian_layer_impl,
    doc = "A rule: the layer of a container image with the programs of a debian_tree in /usr. An archive.",
    attrs = {
        "tree": attr.label(mandatory = True, allow_single_file = True, doc = "A debian_tree."),
    },
)

# Unpacks only /usr/share, without owners, because base-files has directories of groups that a sandbox lacks.
_UNPACK_SHARE = _WORK + """\
for deb in {debs}; do
    dpkg-deb --fsys-tarfile "$deb" > "$work/package.tar"
    tar -C "$work" --no-same-owner -xf "$work/package.tar" ./usr/share
done
"""

def _debian_documents_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    debs = ctx.files.packages + ctx.files.more
    lines = ["mkdir {}/copyright".format(out.path)]
    for package in ctx.files.packages:
        # Some documentation directories are links to that of another package.
        lines.append("cp -L \"$work\"/usr/share/doc/{name}/copyright {out}/copyright/{name}".format(
            name = package.basename.removesuffix(".deb"),
            out = out.path,
        ))
    lines.append("cp -rL \"$work\"/usr/share/common-licenses {}/common".format(out.path))
    unpack = _UNPACK_SHARE.format(debs = " ".join([deb.path for deb in debs]))
    _run(ctx, debs, [out], lines, "DebianDocuments", "Unpacking copyright files of Debian packages", unpack)
    return [DefaultInfo(files = depset([out]))]

debian_documents = rule(
    implementation = _debian_documents_impl,
    doc = "The terms of packages: a directory with `copyright/PACKAGE`, and in `common` the licences that these files refer to.",
    attrs = {
        "more": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "Packages that are only read: base-files, and those whose copyright files others point to."),
        "packages": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "The packages."),
    },
)
