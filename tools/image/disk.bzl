"""A rule that creates a disk image for UEFI firmware."""

def _disk_image_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".img")
    inputs = [
        ctx.file.stub,
        ctx.file.kernel,
        ctx.file.initramfs,
        ctx.file.command_line,
        ctx.file.os_release,
        ctx.file.system,
    ]
    args = ctx.actions.args()
    args.add_all(inputs)
    args.add(out)
    ctx.actions.run(
        executable = ctx.executable._disk,
        arguments = [args],
        inputs = inputs,
        outputs = [out],
        mnemonic = "DiskImage",
        progress_message = "Creating the disk of %{label}",
        # The action takes half a second, and a cache would store the holes of the sparse file as zeros.
        execution_requirements = {"no-cache": "1"},
    )
    return [DefaultInfo(files = depset([out]))]

disk_image = rule(
    implementation = _disk_image_impl,
    doc = """A rule: a sparse GPT disk image with a UEFI executable and a system partition with its dm-verity tree.

The builder adds a file with the system partition and its root hash to the initramfs. Reproducible.""",
    attrs = {
        "command_line": attr.label(mandatory = True, allow_single_file = True, doc = "Kernel command line without the system."),
        "initramfs": attr.label(mandatory = True, allow_single_file = True, doc = "Initramfs."),
        "kernel": attr.label(mandatory = True, allow_single_file = True, doc = "Kernel with EFI stub."),
        "os_release": attr.label(mandatory = True, allow_single_file = True, doc = "The os-release that boot menus show."),
        "stub": attr.label(default = "//third_party/debian:stub", allow_single_file = True, doc = "systemd-stub."),
        "system": attr.label(mandatory = True, allow_single_file = True, doc = "The read-only file system."),
        # The target configuration optimizes, and unoptimized tools hash ten times slower. Both configurations have the
        # same platform.
        "_disk": attr.label(default = "//tools/image:disk", executable = True, cfg = "target"),
    },
)
