"""node_test: a test of whole nodes."""

load("//tools/rust:defs.bzl", "rust_test")

_IMAGE = {
    "GRANARY_CMDLINE": "//node/image:cmdline",
    "GRANARY_INITRAMFS": "//node/image:initramfs",
    "GRANARY_KERNEL": "//node/image:kernel",
    "GRANARY_SYSTEM": "//node/image:system",
}

def node_test(name, files = {}, env = {}, **kwargs):
    """A rust_test that boots the image, whose parts are in the environment: GRANARY_KERNEL and so on. A macro.

    Args:
        name: name of the test.
        files: further files: variable -> label.
        env: further variables.
        **kwargs: other attributes of a rust_test.
    """
    files = _IMAGE | files
    rust_test(
        name = name,
        size = "large",
        # Every wait has its own deadline, which is long enough for a test that runs during a build.
        timeout = "eternal",
        data = files.values(),
        env = env | {variable: "$(rootpath %s)" % file for variable, file in files.items()},
        **kwargs
    )
