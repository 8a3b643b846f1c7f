"""The repository of the libraries that are linked into static programs, with the C toolchain that links them."""

def _debian_sysroot_impl(ctx):
    packages = []
    for package in ctx.attr.packages:
        packages += [package.name.removesuffix(".deb"), str(ctx.path(package))]
    result = ctx.execute(["sh", str(ctx.path(ctx.attr._unpack))] + packages)
    if result.return_code:
        fail("cannot unpack {}: {}".format(", ".join(packages), result.stderr))
    ctx.file("cc", ctx.read(ctx.attr._cc))
    ctx.file("BUILD.bazel", ctx.read(ctx.attr._build), executable = False)

debian_sysroot = repository_rule(
    implementation = _debian_sysroot_impl,
    doc = "Headers and static libraries of Debian packages, with a C toolchain, @NAME//:toolchain, that links no other library; libraries.txt has package, SHA-256 and path of each.",
    attrs = {
        "packages": attr.label_list(mandatory = True, allow_files = [".deb"], doc = "The packages."),
        "_build": attr.label(default = "//third_party/debian:sysroot.BUILD.bazel", allow_single_file = True),
        "_cc": attr.label(default = "//third_party/debian:cc.sh", allow_single_file = True),
        "_unpack": attr.label(default = "//third_party/debian:sysroot.sh", allow_single_file = True),
    },
)
