//! The programs of the image, and of the storage image for other clusters, consist of pinned packages.

use std::collections::BTreeSet;

use image::parts::Parts;

#[test]
fn every_program_has_only_pinned_libraries() {
    let parts = Parts::built();
    let sysroot = parts.sysroot();
    let mut linked = BTreeSet::new();
    for (path, program) in parts.described() {
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

#[test]
fn every_program_is_static() {
    for (path, program) in Parts::built().described() {
        assert_eq!(program.loader, None, "{path} needs a dynamic loader");
    }
}

#[test]
fn every_rust_program_is_of_the_pinned_compiler_alone() {
    let parts = Parts::built();
    let pinned = parts.rust();
    for (path, program) in parts.described() {
        // `VERSION (COMMIT DATE)`. The standard library contains the same text, so a second text is from another
        // compiler.
        let compilers: Vec<&str> = program.rustc().into_iter().collect();
        match (&program.go, &*compilers) {
            (Some(_), []) => {}
            (None, [only]) => assert_eq!(only.split(' ').next(), Some(&*pinned), "{path}"),
            _ => panic!("{path}: rustc {pinned} is pinned, it has {compilers:?}"),
        }
    }
}
