"""Tests of Rust crates on the host."""

load("@rules_rust//rust:defs.bzl", "rust_doc_test", _rust_test = "rust_test")

# Targets and the pinned libraries are static, but rustdoc does not get rustc's flags.
_STATIC = "'-Ctarget-feature=+crt-static'"

def _static_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.run_shell(
        outputs = [script],
        inputs = [ctx.executable.script],
        # The last line of the script runs rustdoc.
        command = 'sed "\\$s|\\$| $3|" "$1" >"$2"',
        arguments = [ctx.executable.script.path, script.path, _STATIC],
        mnemonic = "StaticDocTest",
    )
    runfiles = ctx.runfiles([script]).merge(ctx.attr.script[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

_static_test = rule(
    implementation = _static_impl,
    doc = "A rust_doc_test whose examples are linked statically.",
    test = True,
    attrs = {
        "script": attr.label(mandatory = True, executable = True, cfg = "target", doc = "The rust_doc_test."),
    },
)

def rust_test(name, rustc_flags = [], **kwargs):
    """A macro: a rust_test whose crate is compiled without optimization and with overflow checks.

    This takes a third of the CPU time; dependencies are compiled as for the programs. Do not use it for tests whose own
    code computes much or that run in an emulated guest.

    Args:
        name: name of the test.
        rustc_flags: as for every rust_test.
        **kwargs: other attributes of a rust_test.
    """
    _rust_test(
        name = name,
        rustc_flags = ["-Copt-level=0"] + rustc_flags,
        **kwargs
    )

def doc_test(name, crate, deps = [], size = "small", **kwargs):
    """A macro: a test of the examples in the documentation of a crate, linked like the node's programs.

    Args:
        name: name of the test.
        crate: the rust_library.
        deps: further dependencies of the examples.
        size: as for every test.
        **kwargs: other attributes of a test.
    """
    rust_doc_test(
        name = name + "_script",
        size = size,
        crate = crate,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
    )
    _static_test(
        name = name,
        size = size,
        script = ":%s_script" % name,
        **kwargs
    )
