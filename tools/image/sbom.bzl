"""A rule that creates the bill of materials of an image."""

load("@rules_rust//rust:rust_common.bzl", "DepInfo")
load(":programs.bzl", "PROGRAMS", "programs_of")

# Prefixes of names of licence files, in upper case.
_TEXTS = [
    "COPYING",
    "COPYRIGHT",
    "LICENCE",
    "LICENSE",
    "NOTICE",
    "UNLICENSE",
]

def _is_licence_text(file):
    name = file.basename.upper()
    for text in _TEXTS:
        if name.startswith(text):
            return True
    return False

def _files_of(crate):
    """Cargo.toml and licence texts of a registry crate, from the compiler's inputs, which contain all its files."""
    root = crate.owner.workspace_root
    manifest = None
    texts = []
    for file in crate.compile_data.to_list():
        if file.path == root + "/Cargo.toml":
            manifest = file
        elif _is_licence_text(file):
            texts.append(file)
    if not manifest:
        fail("{} has no Cargo.toml".format(crate.owner))
    return struct(manifest = manifest, texts = texts)

def _sbom_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    programs = {}
    crates = {}
    files = programs_of(ctx)
    inputs = files.values()
    for path, file in files.items():
        target = ctx.attr.programs[path]
        linked = []
        if DepInfo in target:
            # Procedural macros are not in the image. Crates of the workspace have the image's own licence.
            for crate in target[DepInfo].transitive_crates.to_list():
                if crate.type == "proc-macro" or not crate.owner.workspace_root:
                    continue
                linked.append(crate.owner.workspace_root)
                crates[crate.owner.workspace_root] = crate
        programs[path] = struct(crates = linked, file = file.path)
    described = {}
    for directory, crate in crates.items():
        found = _files_of(crate)
        inputs += [found.manifest] + found.texts
        described[directory] = struct(
            manifest = found.manifest.path,
            texts = [text.path for text in found.texts],
        )
    description = ctx.actions.declare_file(ctx.label.name + ".description.json")
    ctx.actions.write(description, json.encode(struct(
        name = ctx.attr.image,
        version = ctx.attr.version,
        programs = programs,
        crates = described,
        go = struct(
            vendor = ctx.file.go_vendor.path,
            toolchain = ctx.file._go_sdk.path,
        ),
        debian = struct(
            documents = ctx.file._documents.path,
            installed = [lock.path for lock in ctx.files.locks],
            libraries = ctx.file._libraries.path,
            lock = ctx.file._lock.path,
        ),
        apache = ctx.file._apache.path,
    )))
    ctx.actions.run(
        executable = ctx.executable._sbom,
        arguments = [ctx.actions.args().add(description).add_all([out], expand_directories = False)],
        inputs = inputs + [
            description,
            ctx.file._apache,
            ctx.file._documents,
            ctx.file._go_sdk,
            ctx.file._libraries,
            ctx.file._lock,
            ctx.file.go_vendor,
        ] + ctx.files.locks,
        outputs = [out],
        mnemonic = "Sbom",
        progress_message = "Listing what is in %{label}",
    )
    return [
        DefaultInfo(files = depset([out])),
        OutputGroupInfo(description = depset([description])),
    ]

sbom = rule(
    implementation = _sbom_impl,
    attrs = PROGRAMS | {
        "go_vendor": attr.label(
            doc = "Archive of the sources of the Go programs.",
            allow_single_file = [".tar"],
            mandatory = True,
        ),
        "image": attr.string(
            doc = "Name of the image.",
            mandatory = True,
        ),
        "locks": attr.label_list(
            doc = "Lock files of the Debian packages whose files are in the image.",
            allow_files = [".lock"],
        ),
        "version": attr.string(
            doc = "Version of the image.",
            mandatory = True,
        ),
        "_apache": attr.label(
            allow_single_file = True,
            default = "//:LICENSE",
        ),
        "_documents": attr.label(
            allow_single_file = True,
            default = "//third_party/debian:documents",
        ),
        "_go_sdk": attr.label(
            allow_single_file = True,
            default = "@go_sdk//:sdk.tar",
        ),
        # The target configuration optimizes, and the tool hashes all programs.
        "_sbom": attr.label(
            cfg = "target",
            default = "//tools/image:sbom",
            executable = True,
        ),
    },
    doc = "A rule: a directory with an SPDX document, `sbom/granary.spdx.json`, and the texts of licences, `licenses/`.",
)
