"""Macros for the project's Rust targets. Their crates are those of the package's Cargo.toml."""

load("@crates//:defs.bzl", "aliases", "all_crate_deps")
load("@members//:defs.bzl", "DEPENDENCIES", "LIBRARIES")
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

def _labels(deps):
    """Each label once."""
    return {native.package_relative_label(label): None for label in deps}.keys()

def _layer(kwargs):
    """Defaults by the layer of the package: test is testonly."""
    return {"testonly": native.package_name().startswith("test/")} | kwargs

def _visibility(visibility):
    """Of a library."""
    layer = native.package_name().partition("/")[0]
    if visibility or layer == "tools":
        return visibility
    if layer in ["node", "test"]:
        return ["//node:__subpackages__", "//test:__subpackages__"]
    return ["//visibility:public"]

def _unit_test(name, attributes):
    if attributes != None:
        rust_test(**({"name": name + "_test", "crate": ":" + name} | attributes))

def rust_library(name, srcs = None, deps = None, crates = None, visibility = None, unit_test = {}, doc_test = False, **kwargs):
    """A macro: a rust_library and its unit test, NAME_test.

    Args:
        name: name of the library.
        srcs: the sources; all below src/ except those of programs if omitted.
        deps: crates of this workspace; those of the `[dependencies]` of Cargo.toml if omitted.
        crates: crates from outside; those of the `[dependencies]` of Cargo.toml if omitted.
        visibility: as for every target. If omitted, libraries of pkg and proto are public, those of node and test visible to both.
        unit_test: other attributes of the unit test, see `rust_test`; None if there is none.
        doc_test: whether the examples in the documentation are tested: NAME_doc_test.
        **kwargs: other attributes of a rust_library.
    """
    _rust_library(
        name = name,
        srcs = _sources(srcs, exclude = ["src/main.rs", "src/bin/**"]),
        aliases = aliases(),
        proc_macro_deps = all_crate_deps(proc_macro = True),
        deps = (all_crate_deps(normal = True) if crates == None else crates) +
               (DEPENDENCIES[native.package_name()] if deps == None else deps),
        visibility = _visibility(visibility),
        **_layer(kwargs)
    )
    _unit_test(name, unit_test)
    if doc_test:
        _doc_test(name)

def rust_binary(name, srcs = None, deps = None, crates = None, unit_test = None, **kwargs):
    """A macro: a rust_binary.

    Args:
        name: name of the program.
        srcs: the sources; all below src/ if omitted.
        deps: crates of this workspace; the library of the package and the `[dependencies]` of Cargo.toml if omitted.
        crates: crates from outside; those of the `[dependencies]` of Cargo.toml if omitted.
        unit_test: other attributes of the unit test, NAME_test, see `rust_test`; None if there is none.
        **kwargs: other attributes of a rust_binary.
    """
    package = native.package_name()
    _rust_binary(
        name = name,
        srcs = _sources(srcs),
        aliases = aliases(),
        proc_macro_deps = all_crate_deps(proc_macro = True),
        deps = (all_crate_deps(normal = True) if crates == None else crates) +
               ([LIBRARIES[package]] + DEPENDENCIES[package] if deps == None else deps),
        **_layer(kwargs)
    )
    _unit_test(name, unit_test)

def test_sources(name, srcs, crate_root):
    """The sources of a test that is not a unit test, for macros.

    Args:
        name: name of the test, STEM_KIND or STEM.
        srcs: sources beside tests/STEM.rs and tests/STEM/; all of them if there is a `crate_root`.
        crate_root: the root; tests/STEM.rs or tests/STEM/main.rs if omitted.

    Returns:
        all sources, and the crate root.
    """
    if crate_root:
        return srcs or [crate_root], crate_root
    stem = name.rpartition("_")[0] or name
    roots = ["tests/%s.rs" % stem, "tests/%s/main.rs" % stem]
    found = native.glob([roots[0], "tests/%s/**/*.rs" % stem], allow_empty = True)
    for root in roots:
        if root in found:
            return found + srcs, root
    fail("{}: one of {} must exist, or name the crate_root".format(name, roots))

def rust_test(name, crate = None, srcs = [], crate_root = None, deps = None, dev_deps = [], package = None, rustc_flags = [], size = "small", **kwargs):
    """A macro: a rust_test with the `[dev-dependencies]` from outside of the package's Cargo.toml.

    Its crate is compiled without optimization and with overflow checks unless `rustc_flags` sets an opt-level. This takes a
    third of the CPU time; dependencies are compiled as for the programs. Tests whose own code computes much, or that run in
    an emulated guest, set an opt-level.

    Args:
        name: name of the test.
        crate: the library or program whose unit tests these are.
        srcs: of a test without `crate`, see `test_sources`.
        crate_root: of a test without `crate`, see `test_sources`.
        deps: crates of this workspace that a test without `crate` uses; the library of the package and the `[dependencies]` of
            Cargo.toml if omitted.
        dev_deps: further crates of this workspace. They are not derived, so that each test is built with those that it uses.
        package: package with the Cargo.toml, if it is another one.
        rustc_flags: as for every rust_test.
        size: as for every test.
        **kwargs: other attributes of a rust_test.
    """
    if not [flag for flag in rustc_flags if flag.startswith("-Copt-level=")]:
        rustc_flags = ["-Copt-level=0"] + rustc_flags
    if crate:
        deps = []
    else:
        srcs, crate_root = test_sources(name, srcs, crate_root)
        if deps == None:
            member = package or native.package_name()
            deps = [LIBRARIES[member]] + DEPENDENCIES[member]
    _rust_test(
        name = name,
        size = size,
        srcs = srcs,
        aliases = aliases(normal_dev = True, package_name = package, proc_macro_dev = True),
        crate = crate,
        crate_root = crate_root,
        proc_macro_deps = all_crate_deps(package_name = package, proc_macro = crate == None, proc_macro_dev = True),
        rustc_flags = rustc_flags,
        deps = all_crate_deps(normal = crate == None, normal_dev = True, package_name = package) + _labels(deps + dev_deps),
        **kwargs
    )

def _doc_test(library):
    """A macro: LIBRARY_doc_test, a test of the examples in the documentation of a library, linked like the node's programs."""
    name = library + "_doc_test"
    rust_doc_test(
        name = name + "_script",
        size = "small",
        crate = ":" + library,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = all_crate_deps(normal = True, normal_dev = True) + DEPENDENCIES[native.package_name()],
    )
    _static_test(
        name = name,
        size = "small",
        script = ":%s_script" % name,
    )
