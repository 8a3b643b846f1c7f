"""A repository with the versions that Cargo.toml and go.mod state, for BUILD files."""

def _versions_impl(ctx):
    version = None
    section = None
    for line in ctx.read(ctx.attr.cargo_toml).splitlines():
        if line.startswith("["):
            section = line
        elif section == "[workspace.package]" and line.startswith("version = "):
            version = line.split("\"")[1]
    if not version:
        fail("{} has no version in [workspace.package]".format(ctx.attr.cargo_toml))

    modules = {}
    for line in ctx.read(ctx.attr.go_mod).splitlines():
        # `[require] MODULE VERSION [// indirect]`. Other directives have no version in this place.
        words = [word for word in line.split(" // ")[0].replace("\t", " ").split(" ") if word not in ["", "require"]]
        if len(words) == 2 and words[1].startswith("v"):
            modules[words[0]] = words[1]
    ctx.file("BUILD.bazel")
    ctx.file("defs.bzl", "VERSION = {}\n\nGO_MODULES = {}\n".format(repr(version), repr(modules)))

versions = repository_rule(
    implementation = _versions_impl,
    doc = "`@versions//:defs.bzl`: VERSION, that of Granary, and GO_MODULES, module -> its version.",
    attrs = {
        "cargo_toml": attr.label(mandatory = True, allow_single_file = True, doc = "Cargo.toml of the workspace."),
        "go_mod": attr.label(mandatory = True, allow_single_file = True, doc = "go.mod of the Go programs."),
    },
)
