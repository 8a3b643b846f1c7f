//! The log of a disk's writes outlives the guest and lists its writes.

use std::env;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use ktest_support::replay::write_log::{Completion, Content, Entry, Extent, Write, parse};

/// Reads the log of `a_log_is_written` in `selftest/faults.rs`.
#[test]
fn a_log_has_the_writes_and_flushes_in_their_order() {
    let outputs = tempfile::tempdir().unwrap();
    let output = Command::new(env::var_os("FAULTS").expect("FAULTS names a ktest"))
        .args(["--exact", "a_log_is_written"])
        .env("TEST_UNDECLARED_OUTPUTS_DIR", outputs.path())
        .env_remove("TESTBRIDGE_TEST_ONLY")
        .env_remove("XML_OUTPUT_FILE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut log = File::open(outputs.path().join("scratch-3.log")).unwrap();
    let entries = parse(&mut log).unwrap();
    let [Entry::Write(first), Entry::Flush, Entry::Write(second), Entry::Flush] = entries.as_slice() else {
        panic!("{entries:?}");
    };
    for (write, start, byte) in [(first, 16 * 512, b'a'), (second, 8 * 512, b'b')] {
        let extent = Extent { start, length: 512 };
        assert_eq!(*write, Write { extent, completion: Completion::Cached, content: Content::Data, data: write.data });
        let mut data = [0; 512];
        log.read_exact_at(&mut data, write.data).unwrap();
        assert_eq!(data, [byte; 512]);
    }
}
