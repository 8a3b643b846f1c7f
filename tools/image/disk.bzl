"""The rule that makes a disk image for UEFI firmware."""

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
        progress_message = "Making the disk of %{label}",
        # Made in half a second; a cache would fill its holes with zeros.
        execution_requirements = {"no-cache": "1"},
    )
    return [DefaultInfo(files = depset([out]))]

disk_image = rule(
    implementation = _disk_image_impl,
    doc = """A rule: a GPT disk, sparse, with a UEFI executable, and a system partition with its dm-verity tree.

The builder adds a file to the initramfs: where the system is and what its root hash is. Deterministic.""",
    attrs = {
        "command_line": attr.label(mandatory = True, allow_single_file = True, doc = "The kernel's command line, without the system."),
        "initramfs": attr.label(mandatory = True, allow_single_file = True, doc = "The kernel's first root."),
        "kernel": attr.label(mandatory = True, allow_single_file = True, doc = "The kernel, as an EFI executable too."),
        "os_release": attr.label(mandatory = True, allow_single_file = True, doc = "The os-release that boot menus show."),
        "stub": attr.label(default = "//third_party/debian:stub", allow_single_file = True, doc = "systemd-stub."),
        "system": attr.label(mandatory = True, allow_single_file = True, doc = "The read-only file system."),
        # For the target, as it is optimized then: the tools of the build are not, and hash ten times slower.
        # Both are the same platform.
        "_disk": attr.label(default = "//tools/disk", executable = True, cfg = "target"),
    },
)
