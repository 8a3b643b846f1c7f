"""A repository with the dependencies between the crates of this workspace, as their Cargo.toml files state them."""

def _members_impl(ctx):
    root = ctx.path(ctx.attr.cargo_toml)
    members = [
        line.strip(" \",")
        for line in ctx.read(root).partition("\nmembers = [\n")[2].partition("]")[0].splitlines()
    ]
    libraries = {}
    names = {}
    used = {}
    for member in members:
        section = None
        used[member] = []
        for line in ctx.read(root.dirname.get_child(member).get_child("Cargo.toml")).splitlines():
            # `NAME.workspace = true` or `NAME = { workspace = true, … }`.
            key = line.partition("=")[0].partition(".")[0].strip()
            if line.startswith("["):
                section = line
            elif section == "[package]" and key == "name":
                name = line.split("\"")[1]
                target = ctx.attr.libraries.get(member, name.replace("-", "_"))
                libraries[member] = "//{}:{}".format(member, target)
                names[name] = libraries[member]
            elif section == "[dependencies]":
                used[member].append(key)
    dependencies = {
        member: [names[name] for name in used[member] if name in names]
        for member in members
    }
    ctx.file("BUILD.bazel")
    ctx.file("defs.bzl", "LIBRARIES = {}\n\nDEPENDENCIES = {}\n".format(repr(libraries), repr(dependencies)))

members = repository_rule(
    implementation = _members_impl,
    doc = "`@members//:defs.bzl`: LIBRARIES, package -> the label of its library, and DEPENDENCIES, package -> labels of the libraries that the `[dependencies]` of its Cargo.toml name.",
    attrs = {
        "cargo_toml": attr.label(mandatory = True, allow_single_file = True, doc = "Cargo.toml of the workspace."),
        "libraries": attr.string_dict(doc = "Package -> name of its library, if it is not the name of the crate."),
    },
)
