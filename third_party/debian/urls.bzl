"""Addresses of pinned packages."""

_SECURITY = "security:"

def package_urls(path, main, security):
    """Addresses of a package, in the order in which the build tries them.

    Args:
      path: The package's file in the lock. The prefix `security:` selects the servers of the security suites.
      main: Base URLs of the servers of all other suites: the mirror, then the archive. Missing ones are None or empty.
      security: Base URLs of the servers of the security suites, in the same order.

    Returns:
      A list of URLs.
    """
    servers = security if path.startswith(_SECURITY) else main
    return [server.rstrip("/") + "/" + path.removeprefix(_SECURITY) for server in servers if server]
