//! File operations of the tests, including xfs_io for those that the standard library lacks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::libc::O_DIRECT;
use units::Bytes;

/// A buffer with the alignment that direct I/O requires.
#[repr(C, align(4096))]
struct Piece([u8; PIECE]);

const PIECE: usize = 64 << 10;
static PATTERN: Piece = Piece([0x5a; PIECE]);

pub fn mib(count: u64) -> Bytes {
    Bytes::MIB.checked_mul(count).unwrap()
}

/// Creates a file for direct I/O.
pub fn create_direct(path: &Path) -> File {
    OpenOptions::new().write(true).create_new(true).custom_flags(O_DIRECT).open(path).unwrap()
}

/// Writes until an error; returns the written size and the error.
pub fn fill(mut file: &File) -> (Bytes, io::Error) {
    let mut written = 0;
    loop {
        match file.write(&PATTERN.0) {
            Ok(more) => written += more as u64,
            Err(error) => return (Bytes::new(written), error),
        }
    }
}

/// Writes `bytes`, a multiple of 64 KiB.
pub fn append(mut file: &File, bytes: Bytes) {
    let pieces = bytes.get() / PIECE as u64;
    for _ in 0..pieces {
        file.write_all(&PATTERN.0).unwrap();
    }
}

pub fn write(path: &Path, bytes: Bytes) {
    fs::write(path, vec![0x5a; usize::try_from(bytes.get()).unwrap()]).unwrap();
}

/// Runs xfs_io commands on a file.
pub fn xfs_io(path: &Path, flags: &[&str], commands: &[&str]) -> Output {
    let mut program = Command::new("xfs_io");
    program.arg("-x").args(flags);
    for command in commands {
        program.args(["-c", command]);
    }
    program.arg(path).output().unwrap()
}

/// Runs xfs_io commands, which must succeed, and returns their output.
pub fn xfs_io_ok(path: &Path, flags: &[&str], commands: &[&str]) -> String {
    let output = xfs_io(path, flags, commands);
    assert!(output.status.success() && output.stderr.is_empty(), "{commands:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
