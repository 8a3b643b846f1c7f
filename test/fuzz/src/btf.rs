//! Types of the kernel, `/sys/kernel/btf/vmlinux`.

use lsm::{Btf, Layout};

/// Bytes after the types and strings must not change the result. Types of a kernel must be valid as types of a module.
pub fn check(input: &[u8]) {
    let Ok(mut kernel) = Btf::parse(input.to_vec()) else { return };
    let found = Layout::of(&kernel).ok();
    let longer = Btf::parse([input, &[0xff; 16]].concat()).expect("the same types");
    assert_eq!(Layout::of(&longer).ok(), found);
    kernel.add_module(input.to_vec()).expect("what was read as a kernel");
    drop(Layout::of(&kernel));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_kernels() {
        for (name, seed) in crate::seeds("btf") {
            check(&seed);
            if name.starts_with("linux-") {
                let kernel = Btf::parse(seed).expect("types");
                assert!(Layout::of(&kernel).is_ok(), "{name}");
            }
        }
    }
}
