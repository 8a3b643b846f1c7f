"""The rule that builds something a second time, in another place."""

load("@rules_rust//rust:rust_common.bzl", "DepInfo")

_PLATFORMS = "//command_line_option:platforms"

def _elsewhere_impl(_settings, _attr):
    return {_PLATFORMS: [Label("//tools/platforms:again")]}

# Another configuration has another output directory, and shares no action with the first one. Tools are shared: their
# configuration has its own platform, whereas it would inherit a build setting, and all of them would be compiled again.
_elsewhere = transition(
    implementation = _elsewhere_impl,
    inputs = [],
    outputs = [_PLATFORMS],
)

def _again_impl(ctx):
    # A transition to one configuration, and yet a list.
    [target] = ctx.attr.target

    # Under names of their own: among run files, a path does not name the configuration, and both builds would be one file.
    files = []
    for file in target[DefaultInfo].files.to_list():
        files.append(ctx.actions.declare_file(ctx.label.name + "/" + file.basename))
        ctx.actions.symlink(output = files[-1], target_file = file)

    # What the bill of materials asks a Rust program for.
    crates = [target[DepInfo]] if DepInfo in target else []
    return [DefaultInfo(files = depset(files))] + crates

again = rule(
    implementation = _again_impl,
    attrs = {
        "target": attr.label(
            cfg = _elsewhere,
            doc = "What is built.",
            mandatory = True,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    doc = "A rule: a target, made anew from its sources by actions of their own. What they have of their output directory's name, of time or of chance differs from the first build's.",
)
