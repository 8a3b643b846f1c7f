//! Blocks that XFS allocates for writes to shared ones.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use fsquota::{Ensured, FsError, Quotas};
use nix::errno::Errno;
use nix::libc::O_DIRECT;
use units::Bytes;

use crate::files::{mib, write, xfs_io_ok};
use crate::volumes::{SIZE, Volumes, size};

const BLOCK: u64 = 4096;

/// Bytes that XFS allocates for a write to a block that two files of the volume share.
fn allocated(volumes: &Volumes, name: &str, sizes: &[Bytes]) -> Bytes {
    let memory = [2_u8; 2 * BLOCK as usize];
    let aligned = memory.as_ptr().align_offset(BLOCK as usize);
    let block = &memory[aligned..aligned + BLOCK as usize];
    let (source, clone) = (volumes.path(&format!("a/{name}")), volumes.path(&format!("a/{name}.clone")));
    write(&source, mib(4));
    fsquota::sync(&volumes.root).unwrap();
    xfs_io_ok(&clone, &["-f"], &[&format!("reflink {}", source.display())]);
    let file = File::options().write(true).custom_flags(O_DIRECT).open(&source).unwrap();
    sizes.iter().for_each(|bytes| fsquota::set_cow_extent_size(&file, *bytes).unwrap());
    let before = file.metadata().unwrap().blocks();
    file.write_all_at(block, mib(2).get()).unwrap();
    Bytes::new((file.metadata().unwrap().blocks() - before) * 512)
}

/// XFS allocates a whole range for the first write to a shared block, and keeps the rest of it for later writes. Until
/// then, the rest belongs to no extent, but the file's number of blocks includes it.
#[test]
fn a_write_to_a_shared_block_allocates_the_size_that_was_set() {
    let (volumes, _dir, _) = Volumes::with_volume(size(mib(64)));
    let kib = |size: u64| Bytes::new((size << 10) - BLOCK);
    assert_eq!(allocated(&volumes, "default", &[]), kib(128));
    assert_eq!(allocated(&volumes, "sized", &[Bytes::MIB]), kib(1024));
    assert_eq!(allocated(&volumes, "unset", &[Bytes::MIB, Bytes::ZERO]), kib(128));
}

#[test]
fn settled_usage_has_no_blocks_that_no_write_has_used() {
    let (volumes, dir, id) = Volumes::with_volume(size(mib(64)));
    let unused = allocated(&volumes, "data", &[Bytes::MIB]);
    let quotas = Quotas::open(&dir).unwrap();
    assert_eq!(Some(quotas.quota(id).unwrap().used.bytes), mib(8).checked_add(unused));
    assert_eq!(quotas.settled(id).unwrap().used.bytes, mib(8));
}

#[test]
fn other_attributes_of_the_inode_stay() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    for bytes in [Bytes::MIB, Bytes::ZERO] {
        fsquota::set_cow_extent_size(&dir, bytes).unwrap();
        assert_eq!(fsquota::set(&dir, size(SIZE), &volumes.ids).unwrap(), Ensured::Unchanged(id));
    }
}

#[test]
fn an_invalid_size_is_rejected() {
    let (_volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let invalid = FsError::System { operation: "FS_IOC_FSSETXATTR", source: Errno::EINVAL };
    for bytes in [100, 1 << 32, u64::MAX] {
        assert_eq!(fsquota::set_cow_extent_size(&dir, Bytes::new(bytes)), Err(invalid), "{bytes}");
    }
}
