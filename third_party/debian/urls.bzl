"""Addresses of pinned packages, and of their current versions."""

_SECURITY = "security:"
_SUITE = "# suite: "

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

def package_query(packages, index, main, security):
    """The place at which a mirror has the current version of a package of a lock.

    Args:
      packages: Content of the .packages file of the lock. Both have the same order.
      index: Number of the package in the lock, from 0 on.
      main: Base URL of the mirror of all suites but the security suites.
      security: Base URL of the mirror of the security suites; empty if there is none.

    Returns:
      The mirror, the suite, and the pattern of the name: the arguments of newest.sh. None if one of them is missing.
    """
    suite = None
    queries = []
    for line in packages.splitlines():
        if line.startswith(_SUITE):
            suite = line.removeprefix(_SUITE)
        elif line and not line.startswith("#"):
            queries.append([security if suite and suite.endswith("-security") else main, suite, line])
    return queries[index] if index < len(queries) and all(queries[index]) else None
