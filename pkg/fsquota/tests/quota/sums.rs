//! The usage of a project is the sum of the usage of its inodes after any operations.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use fsquota::Usage;
use ktest_support::eventually_is;
use nix::fcntl::{FallocateFlags, fallocate};
use proptest::prelude::*;
use units::{Bytes, Inodes};

use crate::files::{mib, xfs_io, xfs_io_ok};
use crate::volumes::{Volumes, size};

/// Sum of the stat(2) results of a directory and everything below.
fn sum(path: &Path) -> Usage {
    let here = fs::metadata(path).unwrap();
    let below = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    let (blocks, inodes) = below.fold((here.blocks(), 1), |sum, found| (sum.0 + found.blocks(), sum.1 + 1));
    Usage { bytes: Bytes::new(blocks * 512), inodes: Inodes::new(inodes) }
}

/// An operation on one of a few files. Offsets and lengths are in blocks of 4 KiB.
#[derive(Clone, Debug)]
enum Step {
    Write { file: u8, offset: u64, length: u64 },
    Truncate { file: u8, length: u64 },
    Reserve { file: u8, offset: u64, length: u64 },
    Punch { file: u8, offset: u64, length: u64 },
    Clone { from: u8, to: u8 },
    Remove { file: u8 },
    Sync,
}

const BLOCK: u64 = 4096;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (file, place, length) = (0_u8..4, 0_u64..64, 1_u64..16);
    let area = (file.clone(), place.clone(), length);
    let step = prop_oneof![
        4 => area.clone().prop_map(|(file, offset, length)| Step::Write { file, offset, length }),
        1 => (file.clone(), place).prop_map(|(file, length)| Step::Truncate { file, length }),
        1 => area.clone().prop_map(|(file, offset, length)| Step::Reserve { file, offset, length }),
        1 => area.prop_map(|(file, offset, length)| Step::Punch { file, offset, length }),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::Clone { from, to }),
        1 => file.prop_map(|file| Step::Remove { file }),
        1 => Just(Step::Sync),
    ];
    prop::collection::vec(step, 1..40)
}

fn act(dir: &Path, step: &Step) {
    let path = |file: u8| dir.join(file.to_string());
    let open = |file| File::options().write(true).create(true).truncate(false).open(path(file)).unwrap();
    let range = |offset: u64, length: u64| ((offset * BLOCK).cast_signed(), (length * BLOCK).cast_signed());
    match *step {
        Step::Write { file, offset, length } => {
            let data = vec![0x5a; usize::try_from(length * BLOCK).unwrap()];
            open(file).write_all_at(&data, offset * BLOCK).unwrap();
        }
        Step::Truncate { file, length } => open(file).set_len(length * BLOCK).unwrap(),
        Step::Reserve { file, offset, length } => {
            let (offset, length) = range(offset, length);
            fallocate(open(file), FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, length).unwrap();
        }
        Step::Punch { file, offset, length } => {
            let (offset, length) = range(offset, length);
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(open(file), punch, offset, length).unwrap();
        }
        Step::Clone { from, to } if from != to && path(from).exists() => {
            // `fs::copy` creates a reflink.
            fs::copy(path(from), path(to)).unwrap();
        }
        Step::Clone { .. } => {}
        Step::Remove { file } => drop(fs::remove_file(path(file))),
        Step::Sync => fsquota::sync(File::open(dir).unwrap()).unwrap(),
    }
}

#[test]
fn usage_is_the_sum_after_any_operations() {
    let (volumes, dir, _) = Volumes::with_volume(size(mib(64)));
    let path = volumes.path("a");
    proptest!(ProptestConfig::with_cases(40), |(steps in steps())| {
        for step in &steps {
            act(&path, step);
        }
        fsquota::sync(&dir).unwrap();
        eventually_is(&sum(&path), || fsquota::get(&dir).unwrap().used);
        fs::read_dir(&path).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
    });
    eventually_is(&Usage { bytes: Bytes::ZERO, inodes: Inodes::new(1) }, || fsquota::get(&dir).unwrap().used);
}

#[test]
fn blocks_of_a_split_extent_list_are_counted() {
    let (volumes, dir, _) = Volumes::with_volume(size(mib(64)));
    let path = volumes.path("a/data");
    // Writes every other block of preallocated space, until the extent list needs blocks of its own.
    xfs_io_ok(&path, &["-f"], &["falloc 0 8m"]);
    let writes: Vec<String> = (0..600).map(|block| format!("pwrite {} 4k", block * 2 * BLOCK)).collect();
    xfs_io_ok(&path, &["-d"], &writes.iter().map(String::as_str).collect::<Vec<_>>());
    fsquota::sync(&dir).unwrap();
    let used = fsquota::get(&dir).unwrap().used;
    assert_eq!(used, sum(&volumes.path("a")));
    assert!(used.bytes > mib(8), "{used:?}");
}

#[test]
fn copy_on_write_blocks_follow_a_change_of_project() {
    let volumes = Volumes::new();
    let ((a, _), (b, to)) = (volumes.volume("a", size(mib(16))), volumes.volume("b", size(mib(16))));
    let (data, copy) = (volumes.path("a/data"), volumes.path("a/copy"));
    xfs_io_ok(&volumes.path("a"), &[], &["cowextsize 1m"]);
    xfs_io_ok(&data, &["-f"], &["pwrite 0 64k", "fsync"]);
    xfs_io_ok(&copy, &["-f"], &[&format!("reflink {}", data.display())]);
    // XFS reserves more copy-on-write blocks than are written.
    xfs_io_ok(&data, &[], &["pwrite 0 64k", "fsync"]);
    let used = |dir| fsquota::get(dir).unwrap().used.bytes;
    let before = (used(&a), used(&b));
    xfs_io_ok(&data, &[], &[&format!("chproj {to}")]);
    fsquota::sync(&a).unwrap();
    let after = (used(&a), used(&b));
    assert_eq!((after.0, before.1), (Bytes::new(64 << 10), Bytes::ZERO));
    assert_eq!(after.0.checked_add(after.1), before.0.checked_add(before.1));
}

#[test]
fn contents_of_two_volumes_cannot_be_exchanged() {
    let volumes = Volumes::new();
    let ((a, _), (b, _)) = (volumes.volume("a", size(mib(16))), volumes.volume("b", size(mib(1))));
    let (large, small) = (volumes.path("a/large"), volumes.path("b/small"));
    xfs_io_ok(&large, &["-f"], &["pwrite 0 8m", "fsync"]);
    xfs_io_ok(&small, &["-f"], &["pwrite 0 64k", "truncate 8m", "fsync"]);
    let before = (fsquota::get(&a).unwrap().used, fsquota::get(&b).unwrap().used);
    let output = xfs_io(&large, &[], &[&format!("swapext {}", small.display())]);
    assert!(!output.status.success() || !output.stderr.is_empty(), "{output:?}");
    assert_eq!((fsquota::get(&a).unwrap().used, fsquota::get(&b).unwrap().used), before);
}
