"""A rule that creates an initramfs."""

def _initramfs_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cpio")
    lines = [
        "set -eu",
        "root=$(mktemp -d); trap 'rm -rf \"$root\"' EXIT",
        "for d in {}; do mkdir -p \"$root/$d\"; done".format(" ".join(ctx.attr.directories)),
    ]
    inputs = []
    if ctx.file.init:
        inputs.append(ctx.file.init)
        lines.append("install -m 0755 {} \"$root/init\"".format(ctx.file.init.path))
    for target, path in ctx.attr.files.items():
        file = target[DefaultInfo].files.to_list()[0]
        inputs.append(file)
        lines.append("install -D -m 0755 {} \"$root/{}\"".format(file.path, path))
    for target, path in ctx.attr.trees.items():
        tree = target[DefaultInfo].files.to_list()[0]
        inputs.append(tree)
        lines.append("mkdir -p \"$root/{path}\" && cp -rL {tree}/. \"$root/{path}/\"".format(path = path, tree = tree.path))
    for path, target in ctx.attr.links.items():
        lines.append("ln -s {} \"$root/{}\"".format(target, path))

    # Reproducible: sorted names, no owner, no time. Not compressed, because an emulated CPU takes longer to decompress
    # the initramfs than to read it.
    lines += [
        "chmod -R u=rwX,go=rX \"$root\"",
        "find \"$root\" -exec touch -h -d @0 {} +",
        "out=$PWD/{}".format(out.path),
        "cd \"$root\"",
        "find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible > \"$out\"",
    ]
    ctx.actions.run_shell(
        inputs = inputs,
        outputs = [out],
        command = "\n".join(lines),
        mnemonic = "Initramfs",
        progress_message = "Packing %{label}",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

initramfs = rule(
    implementation = _initramfs_impl,
    doc = "A rule: a cpio archive that the kernel unpacks as its initial root file system, or as a part of it.",
    attrs = {
        "directories": attr.string_list(default = ["dev", "proc", "sys"], doc = "Empty directories."),
        "files": attr.label_keyed_string_dict(allow_files = True, doc = "File -> its path."),
        "init": attr.label(allow_single_file = True, doc = "The static program that the kernel executes as /init, if it is in this archive."),
        "links": attr.string_dict(doc = "Path -> target of the symbolic link."),
        "trees": attr.label_keyed_string_dict(allow_files = True, doc = "Directory artifact -> its path."),
    },
)
