//! Disks that have faults from the first request on fail at the configured place only.

use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nix::errno::Errno;

const SECTOR: u64 = 512;

#[repr(align(512))]
struct Sector([u8; SECTOR as usize]);

/// A disk, selected by its index in the attribute `disks`. Each disk has a different fault.
struct Faulty(File);

impl Faulty {
    fn disk(index: usize) -> Self {
        let disks = env::var("KTEST_DISKS").unwrap();
        let device = disks.split(',').nth(index).unwrap();
        // O_DIRECT, because the page cache would join requests and answer reads by itself.
        Self(File::options().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(device).unwrap())
    }

    fn write(&self, sector: u64, byte: u8) -> io::Result<()> {
        self.0.write_all_at(&Sector([byte; SECTOR as usize]).0, sector * SECTOR)
    }

    fn read(&self, sector: u64) -> io::Result<u8> {
        let mut found = Sector([0; SECTOR as usize]);
        self.0.read_exact_at(&mut found.0, sector * SECTOR)?;
        assert_eq!(found.0, [found.0[0]; SECTOR as usize]);
        Ok(found.0[0])
    }
}

#[track_caller]
fn assert_eio<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
}

/// `fail=write@2048:once`
#[test]
fn a_write_fails_once_at_its_sector_and_changes_nothing() {
    let disk = Faulty::disk(0);
    for neighbour in [2047, 2049] {
        disk.write(neighbour, b'n').unwrap();
    }
    assert_eq!(disk.read(2048).unwrap(), 0);
    assert_eio(disk.write(2048, b'w'));
    assert_eq!(disk.read(2048).unwrap(), 0);
    disk.write(2048, b'w').unwrap();
    assert_eq!([2047, 2048, 2049].map(|sector| disk.read(sector).unwrap()), *b"nwn");
    disk.0.sync_all().unwrap();
}

/// `fail=read@4096`
#[test]
fn a_read_fails_at_its_sector_each_time() {
    let disk = Faulty::disk(1);
    for sector in 4095..=4097 {
        disk.write(sector, b'r').unwrap();
    }
    for _ in 0..3 {
        assert_eio(disk.read(4096));
        assert_eq!([4095, 4097].map(|sector| disk.read(sector).unwrap()), *b"rr");
    }
    disk.0.sync_all().unwrap();
}

/// `fail=flush:once`
#[test]
fn a_flush_fails_once() {
    let disk = Faulty::disk(2);
    disk.write(0, b'f').unwrap();
    assert_eio(disk.0.sync_all());
    disk.0.sync_all().unwrap();
    assert_eq!(disk.read(0).unwrap(), b'f');
}

/// `log`. `runner/tests/write_log.rs` reads the recorded log on the host.
#[test]
fn a_log_is_written() {
    let disk = Faulty::disk(3);
    disk.write(16, b'a').unwrap();
    disk.0.sync_all().unwrap();
    disk.write(8, b'b').unwrap();
    disk.0.sync_all().unwrap();
}
