//! What the linker put into the programs of the image is pinned.

use std::collections::BTreeSet;

use buildinfo::program::Program;
use image::Parts;

#[test]
fn every_program_has_only_pinned_libraries_in_it() {
    let parts = Parts::built();
    let sysroot = parts.sysroot();
    let mut linked = BTreeSet::new();
    for (path, bytes) in parts.programs() {
        let program = Program::read(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        let packages = program.packages(&sysroot).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(
            program.go.is_none() || path == "/usr/bin/runc",
            packages.contains("libc6-dev"),
            "{path}: {packages:?}"
        );
        assert_eq!(path == "/usr/bin/runc", packages.contains("libseccomp-dev"), "{path}: {packages:?}");
        linked.extend(packages);
    }
    assert_eq!(linked, ["libc6-dev", "libgcc-12-dev", "libseccomp-dev"].into());
}
