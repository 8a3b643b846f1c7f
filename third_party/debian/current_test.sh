#!/bin/sh
# Cases of current.sh with a mirror that offers one version.
set -eu
current=$1
cd "$TEST_TMPDIR"
printf '# alternatives, 2026-01-01\nlinux-1 1.0 amd64 00 security:pool/linux-1.deb\n' >kernel.lock
printf '# alternatives\n# suite: bookworm-security\nlinux-.*\n' >kernel.packages
echo 'echo mirror' >mirror.sh
offers() { echo "$1" >newest.sh; }
check() { sh "$OLDPWD/$current" kernel.lock kernel.packages mirror.sh newest.sh "$1" 2>message; }
fail() { echo "$1" >&2; exit 1; }

offers 'echo linux-2 2.0 amd64 00 pool/linux-2.deb'
check 2026-03-02 || fail "a lock of 60 days is rejected"
if check 2026-03-03; then fail "a lock of 61 days passes, although the suite offers a newer version"; fi
grep -q 'pins linux-1 1.0, and bookworm-security offers linux-2 2.0' message || fail "$(cat message)"
offers 'echo linux-1 1.0 amd64 00 pool/linux-1.deb'
check 2026-12-31 || fail "an old lock of the newest version is rejected"
offers 'exit 1'
check 2026-12-31 || fail "a mirror without an answer is reported"
echo >kernel.lock
if check 2026-01-02; then fail "a lock without a date passes"; fi
