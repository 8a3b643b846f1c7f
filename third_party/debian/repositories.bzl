"""The repository of pinned Debian packages."""

load(":urls.bzl", "package_query", "package_urls")

_RENEW = "bazel run //third_party/debian:lock"
_ARCHIVE = "To build with this version, name an archive of all versions with GRANARY_DEBIAN_ARCHIVE or GRANARY_DEBIAN_SECURITY_ARCHIVE"

def _mirror(ctx):
    """The mirror that bazelw names, or the one of the machine's apt."""
    named = ctx.getenv("GRANARY_DEBIAN_MIRROR")
    if not named:
        result = ctx.execute(["sh", str(ctx.path(ctx.attr._mirror))])
        named = result.stdout.strip()
    if not named:
        fail("the machine's apt names no Debian mirror: set GRANARY_DEBIAN_MIRROR to the URL of one")
    return named.rstrip("/")

def _security_mirror(ctx):
    """The mirror of the security suites that bazelw names, or the one of the machine's apt."""
    named = ctx.getenv("GRANARY_DEBIAN_SECURITY_MIRROR")
    return (named or ctx.execute(["sh", str(ctx.path(ctx.attr._mirror)), "security"]).stdout.strip()).rstrip("/")

def _found(ctx, main, security, lock, index):
    """What the mirror has now of the package of this line of the lock, as `NAME VERSION`; None if it does not say."""
    packages = ctx.path(lock).dirname.get_child(lock.name.removesuffix(".lock") + ".packages")
    query = package_query(ctx.read(packages), index, main, security) if packages.exists else None
    if not query:
        return None
    result = ctx.execute(["sh", str(ctx.path(ctx.attr._newest))] + query)
    fields = result.stdout.split(" ")
    return " ".join(fields[:2]) if result.return_code == 0 and len(fields) == 5 else None

def _missing(lock, wanted, path, found):
    if not found:
        return "{}: the mirror no longer serves {} ({}), or cannot be reached. To pin what it serves now: {}. {}".format(lock, wanted, path, _RENEW, _ARCHIVE)
    if found == wanted:
        return "{}: the mirror lists {} and does not serve it ({}): try again, or name another mirror with GRANARY_DEBIAN_MIRROR or GRANARY_DEBIAN_SECURITY_MIRROR".format(lock, wanted, path)
    return "{lock}: the mirror no longer serves a package that was pinned\n  wanted {wanted} ({path})\n  found  {found}\nTo pin what it serves now: {renew}\n{archive}".format(
        archive = _ARCHIVE,
        found = found,
        lock = lock,
        path = path,
        renew = _RENEW,
        wanted = wanted,
    )

def _fetched(ctx, lock, main, security, package):
    """Whether a mirror or an archive serves the package, which is in its file then. Fails if all that is served differs from the pin."""
    name, version, _architecture, digest, path = package
    urls = package_urls(path, main, security)
    file = name + ".deb"
    ctx.report_progress("fetching {} {}".format(name, version))
    if ctx.download(url = urls, output = file, sha256 = digest, allow_fail = True).success:
        return True

    # Download the file again with apt, only to report its digest. Bazel rejects plain HTTP without a digest, and its
    # message names neither the package nor the remedy.
    again = "again.deb"
    different = None
    for url in urls:
        ctx.execute(["/usr/lib/apt/apt-helper", "-o", "APT::Sandbox::User=root", "download-file", url, again])
        found = ctx.execute(["sha256sum", again]).stdout.partition(" ")[0]
        if found == digest:
            ctx.execute(["mv", again, file])
            return True
        ctx.delete(again)
        different = different or found
    if different:
        fail("{lock}: {name} {version} is not the file that was pinned\n  wanted sha256 {want}\n  found  sha256 {found}\nIf the change is meant: {renew}".format(
            found = different,
            lock = lock,
            name = name,
            renew = _RENEW,
            version = version,
            want = digest,
        ))
    return False

def _parsed(ctx, lock):
    """The packages of a lock file, and whether they are alternatives."""
    packages = []
    alternatives = False
    for number, line in enumerate(ctx.read(lock).splitlines()):
        alternatives = alternatives or line.startswith("# alternatives")
        if not line or line.startswith("#"):
            continue
        fields = line.split(" ")
        if len(fields) != 5:
            fail("{} line {}: wanted package, version, architecture, SHA-256 and file, found: {}".format(lock, number + 1, line))
        packages.append(fields)
    return packages, alternatives

def _debian_packages_impl(ctx):
    # In the order of use, for each package. Only the mirror decides what is new.
    main = [_mirror(ctx), ctx.getenv("GRANARY_DEBIAN_ARCHIVE")]
    security = [_security_mirror(ctx), ctx.getenv("GRANARY_DEBIAN_SECURITY_ARCHIVE")]
    names = []
    groups = {}
    for lock in ctx.attr.locks:
        group = lock.name.removesuffix(".lock")
        packages, alternatives = _parsed(ctx, lock)
        chosen = []
        for index, package in enumerate(packages):
            name, version, _architecture, _digest, path = package
            if _fetched(ctx, lock, main, security, package):
                chosen.append(package)
                if alternatives:
                    break
                continue
            if alternatives and index + 1 < len(packages):
                # buildifier: disable=print
                print("{}: the mirror does not serve {} {}; the build uses an older one. To pin what it serves now: {}. {}".format(lock, name, version, _RENEW, _ARCHIVE))
                continue
            ctx.report_progress("asking the mirror for what it has instead of {} {}".format(name, version))
            fail(_missing(lock, name + " " + version, path, _found(ctx, main[0], security[0], lock, index)))
        groups[group] = [package[0] for package in chosen]
        names += groups[group]

        # List of the packages that the build uses, for reports and bills of materials.
        ctx.file(lock.name, "".join([" ".join(package) + "\n" for package in chosen]), executable = False)
    ctx.file("BUILD.bazel", "\n".join(
        ["package(default_visibility = [\"//visibility:public\"])", ""] +
        ["exports_files({})".format(repr([name + ".deb" for name in names] + [lock.name for lock in ctx.attr.locks])), ""] +
        ["filegroup(name = {}, srcs = [{}])".format(repr(name), repr(name + ".deb")) for name in names] +
        ["filegroup(name = {}, srcs = {})".format(repr(group), repr([name + ".deb" for name in groups[group]])) for group in groups],
    ) + "\n")

debian_packages = repository_rule(
    implementation = _debian_packages_impl,
    doc = "Debian packages by name, version and SHA-256 from lock files; @NAME//:PACKAGE is its .deb file, @NAME//:LOCK all packages of LOCK.lock, and @NAME//:LOCK.lock their lines. Of a lock with alternatives, it has the first that the mirror or the archive serves.",
    attrs = {
        "locks": attr.label_list(mandatory = True, allow_files = [".lock"], doc = "Lock files, as //third_party/debian:lock writes them."),
        "_mirror": attr.label(default = "//third_party/debian:mirror.sh", allow_single_file = True),
        "_newest": attr.label(default = "//third_party/debian:newest.sh", allow_single_file = True),
    },
)
