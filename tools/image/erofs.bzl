"""A rule that creates a read-only file system image."""

def _erofs_image_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".erofs")
    lines = [
        "set -eu",
        "root=$(mktemp -d); trap 'rm -rf \"$root\"' EXIT",
    ]
    inputs = []
    for directory in ctx.attr.directories:
        lines.append("mkdir -p \"$root/{}\"".format(directory))
    for trees, command in [(ctx.attr.trees, "mkdir -p \"$root{path}\" && cp -rL {file}/. \"$root{path}/\""), (ctx.attr.files, "install -D -m {mode} {file} \"$root{path}\"")]:
        for path, target in trees.items():
            files = target[DefaultInfo].files.to_list()
            if len(files) != 1:
                fail("{}: {} has {} files instead of one".format(path, target.label, len(files)))
            inputs.append(files[0])
            mode = "0644" if path in ctx.attr.data else "0755"
            lines.append(command.format(file = files[0].path, mode = mode, path = path))
    for path, target in ctx.attr.links.items():
        lines.append("mkdir -p \"$root$(dirname {path})\" && ln -s {target} \"$root{path}\"".format(path = path, target = target))

    # Reproducible: times 0, owner root, no extended attributes, a fixed UUID. lz4hc: dm-verity hashes every page that
    # is read, and a compressed image has fewer pages.
    lines += [
        "chmod -R u=rwX,go=rX \"$root\"",
        "mkfs.erofs -x-1 -T0 -U {uuid} -L {label} --all-root --quiet -zlz4hc -C65536 {out} \"$root\" > \"$root.log\" 2>&1 || {{ cat \"$root.log\" >&2; exit 1; }}".format(
            label = ctx.attr.volume_name,
            out = out.path,
            uuid = ctx.attr.uuid,
        ),
        "rm -f \"$root.log\"",
    ]
    ctx.actions.run_shell(
        inputs = inputs,
        outputs = [out],
        command = "\n".join(lines),
        mnemonic = "Erofs",
        progress_message = "Building the file system of %{label}",
        execution_requirements = {"cpu:2": ""},
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

_erofs_image = rule(
    implementation = _erofs_image_impl,
    attrs = {
        "data": attr.string_list(doc = "Paths of files that are not programs."),
        "directories": attr.string_list(doc = "Directories that exist even if they are empty."),
        "files": attr.string_keyed_label_dict(allow_files = True, doc = "Path -> file."),
        "links": attr.string_dict(doc = "Path -> target of the symbolic link."),
        "trees": attr.string_keyed_label_dict(allow_files = True, doc = "Path -> directory artifact with the content."),
        "uuid": attr.string(mandatory = True, doc = "The file system's UUID."),
        "volume_name": attr.string(mandatory = True, doc = "The file system's label, at most 15 characters."),
    },
)

def erofs_image(name, programs = {}, data = {}, **kwargs):
    """A compressed, reproducible EROFS image.

    This is a macro: `programs` are files of mode 0755, `data` of mode 0644.

    Args:
      name: the target; its file is NAME.erofs.
      programs: path -> label.
      data: path -> label.
      **kwargs: trees, links, directories, uuid, volume_name, and what every rule has.
    """
    _erofs_image(
        name = name,
        data = data.keys(),
        files = programs | data,
        **kwargs
    )
