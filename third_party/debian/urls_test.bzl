"""Test of the order in which the build tries servers of a package."""

load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load(":urls.bzl", "package_urls")

def _order_impl(ctx):
    env = unittest.begin(ctx)
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
    return unittest.end(env)

_order_test = unittest.make(_order_impl)

def urls_test(name):
    """Declares the test.

    Args:
      name: Name of the target.
    """
    _order_test(name = name, size = "small")
