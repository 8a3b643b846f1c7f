#!/bin/sh
# Prints the Debian mirror of this machine's own apt, whatever its file format; nothing if it has none.
#   mirror.sh [security]   with `security`: the mirror of the security suites
set -eu

# The site of the first index whose release matches.
site() {
    found=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT) $(CREATED_BY)' 2>/dev/null |
        awk -v releases="$1" '$2 ~ releases && $3 == "main" && $4 == "Packages" { print $1; exit }')
    case $found in
        # Cloud images name a file with mirrors.
        mirror+file:*) grep -v '^#' "${found#mirror+file:}" | awk 'NF { print $1; exit }' ;;
        *) echo "$found" ;;
    esac
}

main=${GRANARY_DEBIAN_MIRROR:-$(site '^(bullseye|bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)$')}
if [ "${1-}" != security ]; then
    echo "$main"
    exit
fi
security=$(site '^(bullseye|bookworm|trixie|forky|oldstable|stable|testing)-security$')
# Mirrors have both archives beside each other.
[ -n "$security" ] || [ -z "$main" ] || security=${main%/}-security
echo "$security"
