"""Container images of static programs."""

def _oci_archive_impl(ctx):
    description = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(description, json.encode(struct(
        reference = ctx.attr.reference,
        path = ctx.attr.path,
        entrypoint = ctx.attr.entrypoint,
        user = ctx.attr.user or None,
    )))
    archive = ctx.actions.declare_file(ctx.label.name + ".tar")
    ctx.actions.run(
        executable = ctx.executable._oci,
        arguments = [ctx.actions.args().add(description).add(ctx.executable.binary).add(archive)],
        inputs = [description, ctx.executable.binary],
        outputs = [archive],
        mnemonic = "OciArchive",
        progress_message = "Creating image %{label}",
    )
    return [DefaultInfo(files = depset([archive]))]

oci_archive = rule(
    implementation = _oci_archive_impl,
    attrs = {
        "binary": attr.label(
            doc = "The one program of the image, statically linked.",
            cfg = "target",
            executable = True,
            mandatory = True,
        ),
        "entrypoint": attr.string_list(
            doc = "The command that a container of the image runs.",
            mandatory = True,
        ),
        "path": attr.string(
            doc = "Absolute path of the program in the image.",
            mandatory = True,
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
    doc = "A rule: an OCI image layout with one image, as a tar archive for `ctr images import`. Reproducible.",
)
