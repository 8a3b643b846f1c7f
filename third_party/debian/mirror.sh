#!/bin/sh
# Prints the Debian mirror of this machine's own apt, whatever its file format; nothing if it has none.
site=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT) $(CREATED_BY)' 2>/dev/null |
    awk '$2 ~ /^(bullseye|bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)$/ && $3 == "main" && $4 == "Packages" { print $1; exit }')
case $site in
    # Cloud images name a file with mirrors.
    mirror+file:*) grep -v '^#' "${site#mirror+file:}" | awk 'NF { print $1; exit }' ;;
    *) echo "$site" ;;
esac
