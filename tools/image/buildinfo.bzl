"""A rule that reports how an image was built."""

load(":programs.bzl", "PROGRAMS", "programs_of")

# Host tools, whose versions are in no file of the image. QEMU does not contribute to the image, but runs its tests. The
# versions change with the build root.
_TOOLS = [
    "cpio",
    "gcc",
    "ld",
    "mkfs.erofs",
    "qemu-system-x86_64",
]

def _build_info_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".json")
    versions = {}
    for tool in _TOOLS:
        version = ctx.actions.declare_file("{}.{}".format(ctx.label.name, tool))
        ctx.actions.run_shell(
            outputs = [version],
            command = "{} --version > {} 2>&1".format(tool, version.path),
            mnemonic = "ToolVersion",
            # Build roots share the cache and have different tools under the same names.
            execution_requirements = {"no-cache": "1"},
            use_default_shell_env = True,
        )
        versions[tool] = version
    programs = programs_of(ctx)
    description = ctx.actions.declare_file(ctx.label.name + ".description.json")
    ctx.actions.write(description, json.encode(struct(
        kernel = ctx.file._kernel.path,
        libraries = ctx.file._libraries.path,
        lock = ctx.file._lock.path,
        programs = {path: file.path for path, file in programs.items()},
        tools = {tool: file.path for tool, file in versions.items()},
    )))
    ctx.actions.run(
        executable = ctx.executable._buildinfo,
        arguments = [ctx.actions.args().add(description).add(out)],
        inputs = [description, ctx.file._kernel, ctx.file._libraries, ctx.file._lock] + programs.values() + versions.values(),
        outputs = [out],
        mnemonic = "BuildInfo",
        progress_message = "Reading what %{label} was built with",
    )
    return [DefaultInfo(files = depset([out]))]

build_info = rule(
    implementation = _build_info_impl,
    attrs = PROGRAMS | {
        "_buildinfo": attr.label(
            cfg = "exec",
            default = "//tools/image:buildinfo",
            executable = True,
        ),
        "_kernel": attr.label(
            allow_single_file = True,
            default = "@debian//:kernel.lock",
        ),
    },
    doc = "A rule: a JSON file with the kernel's package, the compilers of the programs, the pinned packages that were linked into them, and the versions of the tools of the build. A library that is not pinned fails it.",
)
