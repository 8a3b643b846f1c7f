//! Limits that are set and read back.

use fsquota::{Ensured, Limits, Usage};
use proptest::prelude::*;
use units::{Bytes, Inodes};

use crate::files::mib;
use crate::formatted::Formatted;
use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn limits_that_were_set_are_read_back() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.id, quota.limits), (id, both(SIZE, 100)));
    assert_eq!(quota.used, Usage { bytes: Bytes::ZERO, inodes: Inodes::new(1) });
    assert_eq!(fsquota::project(&dir), Ok(Some(id)));
    assert_eq!(fsquota::quota(&volumes.root, id), Ok(quota));
}

/// Sizes near multiples of the block, and arbitrary ones.
fn sizes(block: u64) -> impl Strategy<Value = u64> {
    let largest = Limits::MAX_BYTES.get();
    prop_oneof![
        prop::sample::select(vec![1, 511, 512, 513, 1023, 1024, 1025, block - 1, block, block + 1]),
        prop::sample::select(vec![(1 << 32) - 1, 1 << 32, (1 << 41) - 1, largest - 512, largest - 1, largest]),
        1..=1_u64 << 20,
        1..=largest,
    ]
}

/// Checks that the kernel rounds each limit up to the next multiple of the block.
fn rounds_up_to_a_block_of(block: u64) {
    let formatted = Formatted::new(&["-b", &format!("size={block}")], "prjquota");
    let root = formatted.open();
    let id = fsquota::Allocator::open(&root).unwrap().next().unwrap();
    let counts = prop_oneof![Just(1), Just(Limits::MAX_INODES.get()), 1..=Limits::MAX_INODES.get()];
    proptest!(ProptestConfig::with_cases(200), |(bytes in sizes(block), inodes in counts)| {
        fsquota::set_limits(&root, id, both(Bytes::new(bytes), inodes)).unwrap();
        let limits = fsquota::quota(&root, id).unwrap().limits;
        prop_assert_eq!(limits, both(Bytes::new(bytes.div_ceil(block) * block), inodes));
        // Setting the read limit again does not change it.
        fsquota::set_limits(&root, id, limits).unwrap();
        prop_assert_eq!(fsquota::quota(&root, id).unwrap().limits, limits);
    });
}

#[test]
fn a_size_is_rounded_up_to_a_block_of_1_kib() {
    rounds_up_to_a_block_of(1 << 10);
}

#[test]
fn a_size_is_rounded_up_to_a_block_of_4_kib() {
    rounds_up_to_a_block_of(4 << 10);
}

#[test]
fn a_size_is_rounded_up_to_a_block_of_64_kib() {
    rounds_up_to_a_block_of(64 << 10);
}

#[test]
fn a_limit_of_none_is_unchanged() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    let again = fsquota::set(&dir, size(mib(32)), &volumes.ids).unwrap();
    assert_eq!(again, Ensured::Unchanged(id));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(32), 100));
    let inodes = Limits { bytes: None, inodes: Some(Inodes::new(200)) };
    fsquota::set(&dir, inodes, &volumes.ids).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(32), 200));
    fsquota::set(&dir, Limits::default(), &volumes.ids).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(32), 200));
}

#[test]
fn the_default_limits_of_a_size_can_be_set() {
    let (_volumes, dir, _) = Volumes::with_volume(Limits::for_size(mib(100)));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(100), 51_200));
}

#[test]
fn limits_and_usage_survive_a_remount() {
    let formatted = Formatted::new(&[], "prjquota");
    let quota = {
        let ids = fsquota::Allocator::open(formatted.open()).unwrap();
        let path = formatted.path().join("a");
        std::fs::create_dir(&path).unwrap();
        let dir = std::fs::File::open(&path).unwrap();
        fsquota::set(&dir, both(SIZE, 100), &ids).unwrap();
        crate::files::write(&path.join("data"), mib(3));
        fsquota::sync(&dir).unwrap();
        fsquota::get(&dir).unwrap()
    };
    formatted.remount("prjquota");
    assert_eq!(fsquota::get(std::fs::File::open(formatted.path().join("a")).unwrap()), Ok(quota));
}

#[test]
fn usage_is_recounted_after_a_mount_without_quotas() {
    let formatted = Formatted::new(&[], "prjquota");
    let path = formatted.path().join("a");
    let before = {
        let ids = fsquota::Allocator::open(formatted.open()).unwrap();
        std::fs::create_dir(&path).unwrap();
        let dir = std::fs::File::open(&path).unwrap();
        fsquota::set(&dir, both(SIZE, 100), &ids).unwrap();
        fsquota::get(&dir).unwrap()
    };
    formatted.remount("noquota");
    // XFS does not count the file while quotas are off, but the file inherits the project of the directory.
    crate::files::write(&path.join("data"), mib(3));
    formatted.remount("prjquota");
    let after = fsquota::get(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(after.limits, before.limits);
    assert_eq!(after.used, Usage { bytes: mib(3), inodes: Inodes::new(2) });
}
