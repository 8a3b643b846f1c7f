"""The repository of pinned Debian packages."""

_RENEW = "bazel run //third_party/debian:lock"

def _mirror(ctx):
    """The mirror that bazelw names, or the one of the machine's apt."""
    named = ctx.getenv("GRANARY_DEBIAN_MIRROR")
    if not named:
        result = ctx.execute(["sh", str(ctx.path(ctx.attr._mirror))])
        named = result.stdout.strip()
    if not named:
        fail("the machine's apt names no Debian mirror: set GRANARY_DEBIAN_MIRROR to the URL of one")
    return named.rstrip("/")

def _debian_packages_impl(ctx):
    mirror = _mirror(ctx)
    names = []
    groups = {}
    for lock in ctx.attr.locks:
        group = lock.name.removesuffix(".lock")
        groups[group] = []
        for number, line in enumerate(ctx.read(lock).splitlines()):
            if not line or line.startswith("#"):
                continue
            fields = line.split(" ")
            if len(fields) != 5:
                fail("{} line {}: wanted package, version, architecture, SHA-256 and file, found: {}".format(lock, number + 1, line))
            name, version, _architecture, digest, path = fields
            names.append(name)
            groups[group].append(name)
            file = name + ".deb"
            url = mirror + "/" + path
            ctx.report_progress("fetching {} {}".format(name, version))
            if ctx.download(url = url, output = file, sha256 = digest, allow_fail = True).success:
                continue

            # Once more by apt, only to tell what is there: Bazel takes nothing from plain HTTP without a
            # digest, and its message names neither package nor remedy.
            again = "again.deb"
            ctx.execute(["/usr/lib/apt/apt-helper", "-o", "APT::Sandbox::User=root", "download-file", url, again])
            found = ctx.execute(["sha256sum", again]).stdout.partition(" ")[0]
            if found == digest:
                ctx.execute(["mv", again, file])
                continue
            ctx.delete(again)
            if found:
                fail("{lock}: {name} {version} is not the file that was pinned\n  wanted sha256 {want}\n  found  sha256 {found}\nIf the change is meant: {renew}".format(
                    found = found,
                    lock = lock,
                    name = name,
                    renew = _RENEW,
                    version = version,
                    want = digest,
                ))
            fail("{}: the mirror no longer serves {} {} ({}), or cannot be reached. To pin what it serves now: {}".format(lock, name, version, path, _RENEW))
    ctx.file("BUILD.bazel", "\n".join(
        ["package(default_visibility = [\"//visibility:public\"])", ""] +
        ["exports_files({})".format(repr([name + ".deb" for name in names])), ""] +
        ["filegroup(name = {}, srcs = [{}])".format(repr(name), repr(name + ".deb")) for name in names] +
        ["filegroup(name = {}, srcs = {})".format(repr(group), repr([name + ".deb" for name in groups[group]])) for group in groups],
    ) + "\n")

debian_packages = repository_rule(
    implementation = _debian_packages_impl,
    doc = "Debian packages by name, version and SHA-256 from lock files; @NAME//:PACKAGE is its .deb file, and @NAME//:LOCK all packages of LOCK.lock.",
    attrs = {
        "locks": attr.label_list(mandatory = True, allow_files = [".lock"], doc = "Lock files, as //third_party/debian:lock writes them."),
        "_mirror": attr.label(default = "//third_party/debian:mirror.sh", allow_single_file = True),
    },
)
