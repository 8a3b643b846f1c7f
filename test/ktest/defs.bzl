"""Programs as the payload of a VM, on the node's own kernel: tests (ktest, kernel_test) and others (guest_program)."""

load("//third_party/debian:defs.bzl", "debian_tree", "kernel_modules")
load("//tools/image:initramfs.bzl", "initramfs")
load("//tools/rust:defs.bzl", "rust_test", "test_sources")

# Modules of volumes: XFS, and loop devices of its files.
VOLUME_MODULES = [
    "loop",
    "xfs",
]

# Modules of a recording, see "Replay" in README.md.
RECORDING_MODULES = [
    "dm_delay",
    "dm_log_writes",
    "dm_snapshot",
]

def _guest(ctx, runs):
    config = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(config, json.encode({
        "name": "//{}:{}".format(ctx.label.package, ctx.label.name),
        "runs": runs,
        "kernel": ctx.file.kernel.short_path,
        "initramfs": ctx.file._initramfs.short_path,
        "payload": ctx.file.payload.short_path,
        "memory": ctx.attr.memory,
        "cpus": ctx.attr.cpus,
        "disks": ctx.attr.disks,
        "tools": ctx.attr.tools,
    }))

    # The runner finds the description beside the name that it is started by.
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = ctx.executable._runner, is_executable = True)
    runfiles = ctx.runfiles([config, ctx.file.kernel, ctx.file._initramfs, ctx.file.payload])
    return [DefaultInfo(
        executable = executable,
        runfiles = runfiles.merge(ctx.attr._runner[DefaultInfo].default_runfiles),
    )]

# The same for as many guests as possible: they are restored from one saved guest. Memory that a guest does not touch costs
# nothing.
_MEMORY = "1G"

_ATTRS = {
    "cpus": attr.int(default = 2, doc = "CPUs of the guest."),
    "disks": attr.string_list(doc = "Scratch disks by size, which may be followed by faults (\"1G,fail=flush\") or by \"durable\"."),
    "kernel": attr.label(default = "//third_party/debian:vmlinuz", allow_single_file = True, doc = "The guest's kernel; `modules` are of the default one."),
    "memory": attr.string(default = _MEMORY, doc = "Memory of the guest."),
    "payload": attr.label(mandatory = True, allow_single_file = True, doc = "The program, its modules and tools."),
    "tools": attr.string_list(doc = "Programs that must be there."),
    "_initramfs": attr.label(default = "//test/ktest:guest", allow_single_file = True),
    "_runner": attr.label(default = "//test/ktest/runner", executable = True, cfg = "target"),
}

def _guest_test_impl(ctx):
    return _guest(ctx, "test")

_guest_test = rule(
    implementation = _guest_test_impl,
    doc = "The runner with the description of a VM, for a test program.",
    test = True,
    attrs = _ATTRS,
)

def _guest_binary_impl(ctx):
    return _guest(ctx, "program")

_guest_binary = rule(
    implementation = _guest_binary_impl,
    doc = "The runner with the description of a VM, for a program that is not a test.",
    executable = True,
    attrs = _ATTRS,
)

def _payload(name, program, modules, drivers, tools, programs = {}):
    """NAME_payload: what a guest has beside //test/ktest:guest. A macro. Returns its tools."""
    if tools == None:
        tools = ["mkfs.xfs"] if "xfs" in modules else []
    common = {
        "tags": ["manual"],
        "testonly": True,
        "visibility": ["//visibility:private"],
    }
    trees = {":%s_modules" % name: "modules"}
    kernel_modules(name = name + "_modules", modules = modules, **common)
    if drivers:
        trees[":%s_drivers" % name] = "drivers"
        kernel_modules(name = name + "_drivers", by_device = True, modules = drivers, **common)
    if tools:
        trees[":%s_tools" % name] = "usr"
        debian_tree(name = name + "_tools", packages = [Label("//third_party/debian:test_packages")], programs = tools, **common)
    initramfs(
        name = name + "_payload",
        directories = [],
        files = {program: "program"} | {label: "usr/bin/" + file for label, file in programs.items()},
        links = {"lib64": "usr/lib"} if tools else {},
        trees = trees,
        **common
    )
    return tools

def ktest(
        name,
        test,
        modules = ["xfs"],
        drivers = [],
        tools = None,
        programs = {},
        size = "small",
        timeout = "moderate",
        tags = [],
        **kwargs):
    """Runs a Rust test program as root in a VM of its own. A macro.

    It groups the modules (NAME_modules), the tools (NAME_tools), the archive of both with the program (NAME_payload) and the
    test (NAME).
    --test_arg and --test_filter reach the program as they would reach any rust_test. Most tests want
    `kernel_test`, which makes the program too.

    Args:
        name: name of the test.
        test: a rust_test, statically linked; tag it `manual`, so that it is not run on the host.
        modules: kernel modules that are loaded before the program starts, with their dependencies.
        drivers: kernel modules in /drivers, which the program loads itself (`kernel::modules::Drivers`).
        tools: programs that the test starts, out of //third_party/debian:test_packages. They and their libraries become /usr.
            `mkfs.xfs` if omitted and XFS is among the modules.
        programs: static programs of other packages that the test starts: label -> name in /usr/bin.
        size: as for every test.
        timeout: as for every test. Emulation is slow on a busy machine, hence more than a minute.
        tags: as for every test.
        **kwargs: disks, memory, cpus and kernel of the guest (see README.md), and other attributes of a test.
    """
    tools = _payload(name, test, modules, drivers, tools, programs)
    _guest_test(
        name = name,
        size = size,
        payload = ":%s_payload" % name,
        # A guest that mostly waits shares the host with another test.
        tags = tags + ["cpu:1"],
        timeout = timeout,
        tools = tools,
        **kwargs
    )

def kernel_test(
        name,
        srcs = [],
        crate_root = None,
        dev_deps = [],
        crates = None,
        computes = False,
        **kwargs):
    """A file of tests that run in a VM: a rust_test and its ktest. A macro.

    The program (NAME_program) may use all crates from outside that the package's Cargo.toml names, for tests or not, and
    `ktest_support`.

    Args:
        name: name of the test, STEM_ktest.
        srcs: sources beside tests/STEM.rs and tests/STEM/; all of them if there is a `crate_root`.
        crate_root: the crate's root; tests/STEM.rs or tests/STEM/main.rs if omitted.
        dev_deps: as for `rust_test`.
        crates: the package with the Cargo.toml, if it is not this one.
        computes: whether the program itself computes for long in emulation, and is optimized for that. Others mostly wait
            for the kernel; the crates that they test are optimized.
        **kwargs: attributes of `ktest`: disks, modules, drivers, tools, memory and so on.
    """
    srcs, crate_root = test_sources(name, srcs, crate_root)
    rust_test(
        name = name + "_program",
        testonly = True,
        srcs = srcs,
        crate_root = crate_root,
        dev_deps = dev_deps + [Label("//test/ktest/support")],
        package = crates,
        rustc_flags = ["-Copt-level=%s" % ("s" if computes else "0")],
        # Not on the host.
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    ktest(name = name, test = ":%s_program" % name, **kwargs)

def guest_program(
        name,
        program,
        modules = ["xfs"],
        tools = None,
        **kwargs):
    """A program that runs as root in a VM of its own, and is started like any other. A macro.

    Its arguments, output, error output (both as UTF-8 text) and status are those of the program in the guest. It has
    no input. A signal n is status 128 + n; 125 says that the guest failed, and standard error why. As
    `data` of another target it finds its files by itself.

    Args:
        name: name of the executable target.
        program: a rust_binary, statically linked.
        modules: as for `ktest`.
        tools: as for `ktest`.
        **kwargs: disks, memory, cpus and kernel of the guest, and other attributes of a target.
    """
    tools = _payload(name, program, modules, [], tools)
    _guest_binary(
        name = name,
        testonly = True,
        payload = ":%s_payload" % name,
        tags = ["manual"],
        tools = tools,
        **kwargs
    )
