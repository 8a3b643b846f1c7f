//! Tests that misbehave, each in its own way. `runner/tests/refusals.rs` runs them one by one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process;
use std::thread;

use ktest_support::Disk;

#[test]
fn fails() {
    assert_eq!(1 + 1, 3, "arithmetic still holds");
}

/// Triggers a SysRq key that ends the guest.
fn sysrq(key: &str) {
    assert_eq!(fs::read_link("/proc/1/exe").unwrap(), Path::new("/init"), "this is not a guest of a ktest");
    fs::write("/proc/sysrq-trigger", key).unwrap();
}

#[test]
fn panics_the_kernel() {
    sysrq("c");
}

#[test]
fn ends_the_machine() {
    sysrq("o");
    thread::park();
}

#[test]
fn aborts() {
    process::abort();
}

#[test]
fn leaves_without_a_word() {
    process::exit(0);
}

#[test]
fn hangs() {
    loop {
        thread::park();
    }
}

/// Passes if the only disk fails its flushes.
#[test]
fn a_flush_fails() {
    let disk = Disk::take();
    let mut device = File::options().write(true).open(disk.path()).unwrap();
    device.write_all(&[1; 4096]).unwrap();
    let error = device.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
}
