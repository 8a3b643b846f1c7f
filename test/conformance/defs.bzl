"""Parts of the images of Kubernetes' end-to-end tests."""

def _shell_layer_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".tar")
    lines = [
        "set -eu",
        "work=$(mktemp -d); trap 'rm -rf \"$work\"' EXIT",
        # All users must be able to read the root directory of the image.
        "umask 022; chmod 0755 \"$work\"",
        "mkdir \"$work/bin\"",
        "cp {} \"$work/bin/busybox\"; chmod 0755 \"$work/bin/busybox\"".format(ctx.file.busybox.path),
    ]
    for path, target in ctx.attr.links.items():
        lines.append("mkdir -p \"$work/$(dirname {path})\"; ln -s {target} \"$work/{path}\"".format(path = path, target = target))
    lines += [
        "for name in $(\"$work/bin/busybox\" --list); do",
        # A link may point to a file of another layer.
        "  [ -e \"$work/bin/$name\" ] || [ -L \"$work/bin/$name\" ] || ln -s busybox \"$work/bin/$name\"",
        "done",
    ]
    for path in ["root", "run", "tmp"] + ctx.attr.directories:
        lines.append("mkdir -p \"$work/{path}\"; chmod 1777 \"$work/{path}\"".format(path = path))
    for path, content in ctx.attr.texts.items():
        lines.append("mkdir -p \"$work/$(dirname {path})\"; printf '%s\\n' '{content}' >\"$work/{path}\"".format(content = content, path = path))
    for mode, programs in {"0755": ctx.attr.programs, "4755": ctx.attr.setuid}.items():
        for program, path in programs.items():
            file = program[DefaultInfo].files.to_list()[0].path
            lines.append("mkdir -p \"$work/$(dirname {path})\"; cp --remove-destination {file} \"$work/{path}\"; chmod {mode} \"$work/{path}\"".format(file = file, mode = mode, path = path))
    lines.append("tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C \"$work\" -cf {} .".format(out.path))
    ctx.actions.run_shell(
        inputs = [ctx.file.busybox] + ctx.files.programs + ctx.files.setuid,
        outputs = [out],
        command = "\n".join(lines),
        mnemonic = "ShellLayer",
        progress_message = "Creating the files of %{label}",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

shell_layer = rule(
    implementation = _shell_layer_impl,
    doc = "A rule: the layer of an image with busybox, a link to it for each of its commands, and writable directories. An archive.",
    attrs = {
        "busybox": attr.label(default = "//third_party/debian:busybox", allow_single_file = True, doc = "The program, linked statically."),
        "directories": attr.string_list(doc = "Further directories that every user may write to."),
        "links": attr.string_dict(doc = "Path in the image -> target of the link."),
        "programs": attr.label_keyed_string_dict(allow_files = True, doc = "Program -> path in the image."),
        "setuid": attr.label_keyed_string_dict(allow_files = True, doc = "Program -> path in the image. It runs with the rights of root."),
        "texts": attr.string_dict(doc = "Path in the image -> content of the file, without a quotation mark."),
    },
)
