"""Macros for the project's Rust targets, with the third-party crates of the package's Cargo.toml."""

load("@crates//:defs.bzl", "aliases", "all_crate_deps")
load("@rules_rust//rust:defs.bzl", "rust_doc_test", _rust_binary = "rust_binary", _rust_library = "rust_library", _rust_test = "rust_test")

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

def _sources(srcs, exclude = []):
    return srcs if srcs != None else native.glob(["src/**/*.rs"], exclude = exclude)

def rust_library(name, srcs = None, deps = [], **kwargs):
    """A macro: a rust_library with the `[dependencies]` of the package's Cargo.toml.

    Args:
        name: name of the library.
        srcs: the sources; all below src/ except main.rs if omitted.
        deps: crates of this workspace.
        **kwargs: other attributes of a rust_library.
    """
    _rust_library(
        name = name,
        srcs = _sources(srcs, exclude = ["src/main.rs"]),
        aliases = aliases(),
        proc_macro_deps = all_crate_deps(proc_macro = True),
        deps = all_crate_deps(normal = True) + deps,
        **kwargs
    )

def rust_binary(name, srcs = None, deps = [], **kwargs):
    """A macro: a rust_binary with the `[dependencies]` of the package's Cargo.toml.

    Args:
        name: name of the program.
        srcs: the sources; all below src/ if omitted.
        deps: crates of this workspace.
        **kwargs: other attributes of a rust_binary.
    """
    _rust_binary(
        name = name,
        srcs = _sources(srcs),
        aliases = aliases(),
        proc_macro_deps = all_crate_deps(proc_macro = True),
        deps = all_crate_deps(normal = True) + deps,
        **kwargs
    )

def rust_test(name, crate = None, deps = [], package = None, rustc_flags = [], size = "small", **kwargs):
    """A macro: a rust_test with the `[dev-dependencies]` of the package's Cargo.toml.

    Its crate is compiled without optimization and with overflow checks unless `rustc_flags` sets an opt-level. This takes a
    third of the CPU time; dependencies are compiled as for the programs. Tests whose own code computes much, or that run in
    an emulated guest, set an opt-level.

    Args:
        name: name of the test.
        crate: the library or program whose unit tests these are. A test without it has `srcs`, and the `[dependencies]` too.
        deps: crates of this workspace.
        package: package with the Cargo.toml, if it is another one.
        rustc_flags: as for every rust_test.
        size: as for every test.
        **kwargs: other attributes of a rust_test.
    """
    if not [flag for flag in rustc_flags if flag.startswith("-Copt-level=")]:
        rustc_flags = ["-Copt-level=0"] + rustc_flags
    _rust_test(
        name = name,
        size = size,
        aliases = aliases(normal_dev = True, package_name = package, proc_macro_dev = True),
        crate = crate,
        proc_macro_deps = all_crate_deps(package_name = package, proc_macro_dev = True),
        rustc_flags = rustc_flags,
        deps = all_crate_deps(normal = crate == None, normal_dev = True, package_name = package) + deps,
        **kwargs
    )

def doc_test(name, crate, deps = [], size = "small", **kwargs):
    """A macro: a test of the examples in the documentation of a crate, linked like the node's programs.

    Args:
        name: name of the test.
        crate: the rust_library.
        deps: crates of this workspace that the examples use beside it.
        size: as for every test.
        **kwargs: other attributes of a test.
    """
    rust_doc_test(
        name = name + "_script",
        size = size,
        crate = crate,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = all_crate_deps(normal = True, normal_dev = True) + deps,
    )
    _static_test(
        name = name,
        size = size,
        script = ":%s_script" % name,
        **kwargs
    )
