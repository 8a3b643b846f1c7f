"""Tests of the servers of a package: the order in which the build tries them, and the one that has the current version."""

load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load(":urls.bzl", "package_query", "package_urls")

def _order(env):
    main = ["http://mirror.test/debian", "http://archive.test/debian/"]
    security = ["http://mirror.test/debian-security", "http://archive.test/debian-security/"]
    asserts.equals(
        env,
        ["http://mirror.test/debian/pool/a.deb", "http://archive.test/debian/pool/a.deb"],
        package_urls("pool/a.deb", main, security),
    )
    asserts.equals(
        env,
        ["http://mirror.test/debian-security/pool/a.deb", "http://archive.test/debian-security/pool/a.deb"],
        package_urls("security:pool/a.deb", main, security),
    )

    # An archive of the main suites has no packages of the security suites.
    asserts.equals(
        env,
        ["http://mirror.test/debian-security/pool/a.deb"],
        package_urls("security:pool/a.deb", main, [security[0], None]),
    )

def _query(env):
    packages = "# Kernels.\n# suite: bookworm-security\nlinux-a\n\n# suite: bookworm-backports\n# Comment.\nlinux-b\nlinux-c\n"

    def query(index, security = "http://mirror.test/debian-security"):
        return package_query(packages, index, "http://mirror.test/debian", security)

    asserts.equals(env, ["http://mirror.test/debian-security", "bookworm-security", "linux-a"], query(0))
    asserts.equals(env, ["http://mirror.test/debian", "bookworm-backports", "linux-b"], query(1))
    asserts.equals(env, ["http://mirror.test/debian", "bookworm-backports", "linux-c"], query(2))

    # The lock has more lines than the file; the suite lacks a mirror; the line lacks a suite.
    asserts.equals(env, None, query(3))
    asserts.equals(env, None, query(0, security = ""))
    asserts.equals(env, None, package_query("linux-a\n", 0, "http://mirror.test/debian", ""))

def _urls_impl(ctx):
    env = unittest.begin(ctx)
    _order(env)
    _query(env)
    return unittest.end(env)

_urls_test = unittest.make(_urls_impl)

def urls_test(name):
    """Declares the test.

    Args:
      name: Name of the target.
    """
    _urls_test(name = name, size = "small")
