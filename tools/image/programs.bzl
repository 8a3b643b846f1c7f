"""Attributes of the rules that examine the programs of an image."""

PROGRAMS = {
    "programs": attr.string_keyed_label_dict(
        doc = "Path in the image -> program.",
        allow_files = True,
        mandatory = True,
    ),
    "_libraries": attr.label(
        doc = "List of the libraries of the sysroot.",
        allow_single_file = True,
        default = "@sysroot//:libraries.txt",
    ),
    "_lock": attr.label(
        doc = "Lock file of the packages of these libraries.",
        allow_single_file = True,
        default = "//third_party/debian:sysroot.lock",
    ),
}

def programs_of(ctx):
    """The file of each program, by its path in the image.

    Args:
        ctx: of a rule with the attributes `PROGRAMS`.

    Returns:
        path -> File.
    """
    programs = {}
    for path, target in ctx.attr.programs.items():
        files = target[DefaultInfo].files.to_list()
        if len(files) != 1:
            fail("{}: {} has {} files instead of one".format(path, target.label, len(files)))
        programs[path] = files[0]
    return programs
