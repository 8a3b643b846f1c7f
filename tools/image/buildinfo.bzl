"""The rule that tells what an image was built with."""

def _build_info_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".json")
    version = ctx.actions.declare_file(ctx.label.name + ".mkfs.erofs")

    # A program of the build's root, as in erofs.bzl, whose version no file of the image tells.
    ctx.actions.run_shell(
        outputs = [version],
        command = "mkfs.erofs --version > {} 2>&1".format(version.path),
        mnemonic = "ToolVersion",
        use_default_shell_env = True,
    )
    programs = {}
    for path, target in ctx.attr.programs.items():
        files = target[DefaultInfo].files.to_list()
        if len(files) != 1:
            fail("{}: {} gives {} files, one is wanted".format(path, target.label, len(files)))
        programs[path] = files[0]
    description = ctx.actions.declare_file(ctx.label.name + ".description.json")
    ctx.actions.write(description, json.encode(struct(
        locks = [lock.path for lock in ctx.files.locks],
        programs = {path: file.path for path, file in programs.items()},
        tools = {"mkfs.erofs": version.path},
    )))
    ctx.actions.run(
        executable = ctx.executable._buildinfo,
        arguments = [ctx.actions.args().add(description).add(out)],
        inputs = [description, version] + ctx.files.locks + programs.values(),
        outputs = [out],
        mnemonic = "BuildInfo",
        progress_message = "Reading what %{label} was built with",
    )
    return [DefaultInfo(files = depset([out]))]

build_info = rule(
    implementation = _build_info_impl,
    attrs = {
        "locks": attr.label_list(
            doc = "Locks of Debian's packages.",
            allow_files = [".lock"],
        ),
        "programs": attr.string_keyed_label_dict(
            doc = "Path in the image -> program.",
            allow_files = True,
            mandatory = True,
        ),
        "_buildinfo": attr.label(
            cfg = "exec",
            default = "//tools/buildinfo",
            executable = True,
        ),
    },
    doc = "A rule: a JSON file with what built the programs (compilers, linkers, Go modules), with the packages of the locks, and with the version of mkfs.erofs.",
)
