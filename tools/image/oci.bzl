"""Container images of static programs, and of other layers."""

def _oci_archive_impl(ctx):
    description = ctx.actions.declare_file(ctx.label.name + ".json")
    binary = ctx.executable.binary
    if bool(binary) != bool(ctx.attr.path):
        fail("{}: binary and path go together".format(ctx.label))
    ctx.actions.write(description, json.encode(struct(
        format = ctx.attr.format,
        reference = ctx.attr.reference,
        layers = [layer.path for layer in ctx.files.layers],
        program = struct(path = ctx.attr.path, file = binary.path) if binary else None,
        entrypoint = [ctx.attr.path] if binary else [],
        arguments = ctx.attr.arguments,
        environment = ["{}={}".format(name, value) for name, value in ctx.attr.env.items()],
        user = ctx.attr.user or None,
    )))
    archive = ctx.actions.declare_file(ctx.label.name + ".tar")
    ctx.actions.run(
        executable = ctx.executable._oci,
        arguments = [ctx.actions.args().add(description).add(archive)],
        inputs = [description] + ctx.files.layers + ([binary] if binary else []),
        outputs = [archive],
        mnemonic = "OciArchive",
        progress_message = "Creating image %{label}",
    )
    return [DefaultInfo(files = depset([archive]))]

oci_archive = rule(
    implementation = _oci_archive_impl,
    attrs = {
        "arguments": attr.string_list(
            doc = "Default arguments of the entry point. Of an image without a program: its default command.",
        ),
        "binary": attr.label(
            doc = "The program of the uppermost layer, statically linked.",
            allow_files = True,
            cfg = "target",
            executable = True,
        ),
        "env": attr.string_dict(
            doc = "Environment of the containers.",
        ),
        "format": attr.string(
            default = "oci",
            doc = "Format of the archive: `oci` is an OCI image layout, `docker` has the `manifest.json` of Docker only.",
            values = [
                "docker",
                "oci",
            ],
        ),
        "layers": attr.label_list(
            doc = "Layers below the program, uncompressed archives, the lowest first.",
            allow_files = [".tar"],
        ),
        "path": attr.string(
            doc = "Absolute path of the program in the image. The program is the entry point.",
        ),
        "reference": attr.string(
            doc = "Full name of the image with a tag.",
            mandatory = True,
        ),
        "user": attr.string(
            doc = "UID:GID in digits; root if empty.",
        ),
        "_oci": attr.label(
            cfg = "exec",
            default = "//tools/image:oci",
            executable = True,
        ),
    },
    doc = "A rule: a tar archive with one image for `ctr images import`. Reproducible.",
)
