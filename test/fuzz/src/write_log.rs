//! Logs of a disk's writes, created by the kernel or by QEMU.

use std::io::Cursor;

use ktest_init::write_log::{Entry, parse};

/// The data of each write must be inside the log, and each extent on the disk must have an end.
pub fn check(input: &[u8]) {
    let Ok(entries) = parse(&mut Cursor::new(input)) else { return };
    let length = input.len() as u64;
    let mut last = 0;
    for entry in entries {
        match entry {
            Entry::Flush => {}
            Entry::Mark(text) => assert!(text.len() as u64 <= length),
            Entry::Discard(extent) => assert!(extent.start.checked_add(extent.length).is_some()),
            Entry::Write(write) => {
                assert!(write.extent.start.checked_add(write.extent.length).is_some() && write.extent.length > 0);
                let end = write.data.checked_add(write.extent.length).expect("an end");
                assert!(write.data > last && end <= length, "{write:?} in a log of {length} bytes");
                last = end - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_logs() {
        for (name, seed) in crate::seeds("write_log") {
            check(&seed);
            assert!(parse(&mut Cursor::new(&seed)).is_ok_and(|entries| entries.len() >= 4), "{name}");
        }
    }
}
