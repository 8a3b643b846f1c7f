"""A second build of targets, to check that the build is reproducible."""

load("@rules_rust//rust:rust_common.bzl", "DepInfo")

_PLATFORMS = "//command_line_option:platforms"

def _elsewhere_impl(_settings, _attr):
    return {_PLATFORMS: [Label("//tools/platforms:again")]}

# Another configuration has another output directory and shares no action with the first one. Both builds share their
# tools, because the exec configuration has its own platform. With a build setting, the tools would inherit the setting
# and be compiled again.
_elsewhere = transition(
    implementation = _elsewhere_impl,
    inputs = [],
    outputs = [_PLATFORMS],
)

def _again_impl(ctx):
    # An attribute with a transition is a list, even for a single configuration.
    [target] = ctx.attr.target

    # Distinct names: paths of runfiles do not contain the configuration, so the files of both builds would collide.
    files = []
    for file in target[DefaultInfo].files.to_list():
        files.append(ctx.actions.declare_file(ctx.label.name + "/" + file.basename))
        ctx.actions.symlink(output = files[-1], target_file = file)

    # Provider of a Rust program that the bill of materials needs.
    crates = [target[DepInfo]] if DepInfo in target else []
    return [DefaultInfo(files = depset(files))] + crates

again = rule(
    implementation = _again_impl,
    attrs = {
        "target": attr.label(
            cfg = _elsewhere,
            doc = "The target.",
            mandatory = True,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    doc = "A rule: a target that is built again from its sources by separate actions. Outputs that depend on the output directory, time or chance differ from those of the first build.",
)

def _replaced(value, again):
    if type(value) == "list":
        return [again.get(item, item) for item in value]
    if type(value) == "dict":
        return {again.get(key, key): again.get(item, item) for key, item in value.items()}
    return again.get(value, value)

def built_twice(name, rule, again, **kwargs):
    """A macro: a target, and `NAME_again`, the same of the second builds of its inputs.

    Args:
        name: name of the target.
        rule: the rule or macro.
        again: label of an input -> label of its second build. All others are shared.
        **kwargs: attributes of the rule: labels, or lists or dictionaries of labels.
    """
    rule(name = name, **kwargs)
    rule(
        name = name + "_again",
        tags = ["manual"],
        **{key: _replaced(value, again) for key, value in kwargs.items()}
    )
