"""ktest: a test program as the payload of a VM, on the node's own kernel."""

load("//third_party/debian:defs.bzl", "kernel_modules")
load("//tools/image:initramfs.bzl", "initramfs")

# What the guest's init needs itself: disks, and a source of random numbers.
_MODULES = [
    "virtio_blk",
    "virtio_rng",
]

def _ktest_test_impl(ctx):
    config = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(config, json.encode({
        "name": "//{}:{}".format(ctx.label.package, ctx.label.name),
        "kernel": ctx.file.kernel.short_path,
        "initramfs": ctx.file.initramfs.short_path,
        "memory": ctx.attr.memory,
        "cpus": ctx.attr.cpus,
        "disks": ctx.attr.disks,
        "tools": ctx.attr.tools,
    }))
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = ctx.executable._runner, is_executable = True)
    runfiles = ctx.runfiles([config, ctx.file.kernel, ctx.file.initramfs])
    return [
        DefaultInfo(
            executable = executable,
            runfiles = runfiles.merge(ctx.attr._runner[DefaultInfo].default_runfiles),
        ),
        RunEnvironmentInfo(environment = {"KTEST_CONFIG": config.short_path}),
    ]

_ktest_test = rule(
    implementation = _ktest_test_impl,
    doc = "The runner with the description of a VM.",
    test = True,
    attrs = {
        "cpus": attr.int(default = 2, doc = "CPUs of the guest."),
        "disks": attr.string_list(doc = "Scratch disks, see `ktest`."),
        "initramfs": attr.label(mandatory = True, allow_single_file = True, doc = "The guest's init with the test program."),
        "kernel": attr.label(mandatory = True, allow_single_file = True, doc = "The guest's kernel."),
        "memory": attr.string(default = "512M", doc = "Memory of the guest."),
        "tools": attr.string_list(doc = "Programs that must be there."),
        "_runner": attr.label(default = "//test/ktest/runner", executable = True, cfg = "target"),
    },
)

def ktest(
        name,
        test,
        disks = [],
        memory = "512M",
        cpus = 2,
        modules = ["xfs"],
        tools = [],
        tool_tree = Label("//third_party/debian:test_programs"),
        kernel = Label("//third_party/debian:vmlinuz"),
        size = "small",
        timeout = "moderate",
        tags = [],
        **kwargs):
    """Runs a Rust test program as root in a VM of its own. A macro.

    It groups the modules (NAME_modules), the initramfs (NAME_initramfs) and the test (NAME).
    --test_arg and --test_filter reach the program as they would reach any rust_test.

    Args:
        name: name of the test.
        test: a rust_test, statically linked; tag it `manual`, so that it is not run on the host.
        disks: scratch disks by size; the program finds their devices in KTEST_DISKS, in this order. A
            size may be followed by faults: "1G,fail=flush", "1G,fail=write@2048:once", or "1G,log".
        memory: the guest's memory.
        cpus: the guest's CPUs.
        modules: kernel modules that are loaded before the program starts, with their dependencies.
        tools: programs that the test starts, from `tool_tree`.
        tool_tree: a directory with `bin` and `lib`, the guest's /usr.
        kernel: the guest's kernel; `modules` are of the one in //third_party/debian.
        size: as for every test.
        timeout: as for every test. Emulation is slow on a busy machine, hence more than a minute.
        tags: as for every test. The guest has two CPUs, and so the test.
        **kwargs: other attributes of a test.
    """
    kernel_modules(
        name = name + "_modules",
        testonly = True,
        modules = _MODULES + modules,
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    trees = {":%s_modules" % name: "modules"}
    if tools:
        trees[tool_tree] = "usr"
    initramfs(
        name = name + "_initramfs",
        testonly = True,
        directories = ["dev", "proc", "run", "sys", "tmp"],
        files = {test: "test"},
        init = Label("//test/ktest/init"),
        links = {"lib64": "usr/lib"} if tools else {},
        tags = ["manual"],
        trees = trees,
        visibility = ["//visibility:private"],
    )
    _ktest_test(
        name = name,
        size = size,
        cpus = cpus,
        disks = disks,
        initramfs = ":%s_initramfs" % name,
        kernel = kernel,
        memory = memory,
        tags = tags + ["cpu:2"],
        timeout = timeout,
        tools = tools,
        **kwargs
    )
