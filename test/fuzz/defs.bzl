"""fuzz_test: coverage-guided fuzzing with libFuzzer, on stable Rust, as an ordinary test."""

load("@bazel_skylib//rules:write_file.bzl", "write_file")
load("//tools/rust:defs.bzl", "rust_binary")

_FLAGS = "@rules_rust//rust/settings:extra_rustc_flags"
_PLATFORMS = "//command_line_option:platforms"

# Flags of `cargo fuzz --sanitizer none`: libFuzzer reads counters of the executed edges and operands of comparisons.
# These flags need no nightly compiler.
_INSTRUMENTATION = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
    "-Copt-level=3",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
]

def _instrumented_impl(settings, _attr):
    # libFuzzer looks up the C library's memcmp, which it replaces, with dlsym. This fails in a static program. A
    # dynamic program needs the machine's libraries, because the pinned libraries are static.
    flags = [flag for flag in settings[_FLAGS] if flag != "-Ctarget-feature=+crt-static"]
    return {
        _FLAGS: flags + _INSTRUMENTATION,
        _PLATFORMS: [Label("@platforms//host")],
    }

# Transition of the attribute `program`: builds the target and all of its crates a second time, with instrumentation.
_instrumented = transition(implementation = _instrumented_impl, inputs = [_FLAGS], outputs = [_FLAGS, _PLATFORMS])

def _fuzz_test_impl(ctx):
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = ctx.executable._runner, is_executable = True)
    seeds = {file.short_path.rpartition("/")[0]: None for file in ctx.files.corpus}.keys()
    if len(seeds) != 1:
        fail("the seeds of a target are in one directory, those of {} in {}".format(ctx.label, seeds))
    runfiles = ctx.runfiles([ctx.executable.program] + ctx.files.corpus)
    for used in [ctx.attr.program[0], ctx.attr._runner]:
        runfiles = runfiles.merge(used[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(executable = executable, runfiles = runfiles),
        RunEnvironmentInfo(environment = {
            "FUZZ_FINDS": ctx.attr.finds,
            "FUZZ_LABEL": "//{}:{}".format(ctx.label.package, ctx.label.name),
            "FUZZ_PROGRAM": ctx.executable.program.short_path,
            "FUZZ_RUNS": str(ctx.attr.runs),
            "FUZZ_SEEDS": seeds[0],
        }),
    ]

_fuzz_test = rule(
    implementation = _fuzz_test_impl,
    doc = "The runner with the description of a fuzz target.",
    test = True,
    attrs = {
        "corpus": attr.label_list(mandatory = True, allow_files = True, doc = "Seeds, all in one directory."),
        "finds": attr.string(doc = "What a target with a bug says when it is found. Empty: there must be none."),
        "program": attr.label(mandatory = True, executable = True, cfg = _instrumented, doc = "A rust_binary with a fuzz_target!."),
        "runs": attr.int(mandatory = True, doc = "Inputs of a test."),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
        "_runner": attr.label(default = "//test/fuzz:runner", executable = True, cfg = "target"),
    },
)

def fuzz_test(name, runs, finds = "", size = "small", timeout = "moderate", **kwargs):
    """A bounded, repeatable fuzz run of one parser. A macro.

    It groups the program (NAME_program, from NAME_source) and the test (NAME). The test makes `runs` inputs from the seeds,
    always the same ones for the same program and seeds. Longer, until it finds something:

        bazel run //test/fuzz:NAME -- -max_total_time=600

    Args:
        name: name of the test, of the directory of its seeds, corpus/NAME, and of the module of the library with its `check`.
        runs: how many inputs the test makes. Choose what takes some seconds.
        finds: for a target with a bug on purpose: the message with which it has to fail.
        size: as for every test.
        timeout: as for every test. A busy machine needs more than a minute.
        **kwargs: other attributes of a test.
    """
    write_file(
        name = name + "_source",
        out = "targets/%s.rs" % name,
        content = [
            "#![no_main]",
            "",
            "libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::%s::check(input));" % name,
            "",
        ],
        tags = ["manual"],
    )
    rust_binary(
        name = name + "_program",
        srcs = [":%s_source" % name],
        crate_name = name + "_program",
        rustc_flags = ["-Copt-level=3"],
        tags = ["manual"],  # The target is only useful with instrumentation.
        visibility = ["//visibility:private"],
        deps = [":fuzz"],
    )
    _fuzz_test(
        name = name,
        size = size,
        corpus = native.glob(["corpus/%s/*" % name]),
        finds = finds,
        program = ":%s_program" % name,
        runs = runs,
        timeout = timeout,
        **kwargs
    )
