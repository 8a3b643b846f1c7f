//! Faults of the file system.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use fsquota::{Fault, Quotas};
use ktest_support::run;

use crate::formatted::Formatted;
use crate::volumes::{SIZE, Volumes, size};

#[test]
fn a_shutdown_is_a_fault() {
    let volumes = Volumes::new();
    let quotas = Quotas::open(&volumes.root).unwrap();
    let (_, id) = volumes.volume("volume", size(SIZE));
    assert_eq!(quotas.faults(), Ok(vec![]));
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(volumes.path("")));
    assert_eq!(quotas.faults(), Ok(vec![Fault::ShutDown]));
    let limits = quotas.quota(id).map(|quota| quota.limits);
    assert!(limits.is_err() || limits == Ok(size(SIZE)), "{limits:?}");
}

/// The header of a group is read again when its buffer was reclaimed.
#[test]
fn a_damaged_group_is_a_fault() {
    let formatted = Formatted::new(&["-d", "agcount=4"], "prjquota");
    let quotas = Quotas::open(formatted.open()).unwrap();
    assert_eq!(quotas.faults(), Ok(vec![]));
    let mut device = File::options().read(true).write(true).open(formatted.device()).unwrap();
    // The second sector of the last group, `struct xfs_agf`.
    let place = device.seek(SeekFrom::End(0)).unwrap() / 4 * 3 + 512;
    let mut magic = [0; 4];
    device.read_exact_at(&mut magic, place).unwrap();
    assert_eq!(&magic, b"XAGF");
    device.write_all_at(&[0xff; 8], place + 48).unwrap();
    device.sync_all().unwrap();
    // Each pass halves the age of the buffers that it does not reclaim.
    let found = (0..100).map(|_| {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        quotas.faults().unwrap()
    });
    assert_eq!(
        found.into_iter().find(|faults| !faults.is_empty()),
        Some(vec![Fault::Groups { damaged: NonZeroU32::MIN, first: 3 }])
    );
}
