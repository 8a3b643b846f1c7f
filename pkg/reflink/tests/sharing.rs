//! Shared blocks on a real XFS.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use ktest_support::{Tmpfs, XfsDisk};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use reflink::{Extent, clone_file, clone_range, extents, unshare};
use units::Bytes;

const MIB: u64 = 1 << 20;

fn file(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// All extents of a file, read in batches.
fn map(file: &File) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    loop {
        let batch = extents(file, all.last().map_or(Bytes::ZERO, |last| last.end())).unwrap();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
    }
}

fn shared(file: &File) -> u64 {
    map(file).iter().filter(|extent| extent.shared).map(|extent| extent.length.get()).sum()
}

#[test]
fn a_clone_shares_its_blocks_until_either_file_is_overwritten() {
    let disk = XfsDisk::with_project_quota();
    let (source, clone) = (file(&disk.path().join("source")), file(&disk.path().join("clone")));
    source.write_all_at(&vec![1; 8 * MIB as usize], 0).unwrap();
    clone_file(&source, &clone).unwrap();
    assert_eq!((shared(&source), shared(&clone)), (8 * MIB, 8 * MIB));
    source.write_all_at(&vec![2; MIB as usize], 0).unwrap();
    assert_eq!((shared(&source), shared(&clone)), (7 * MIB, 7 * MIB));
    for part in 1..8 {
        unshare(&clone, Bytes::new(part * MIB), Bytes::MIB).unwrap();
        assert_eq!(shared(&source), (7 - part) * MIB);
    }
    let mut content = vec![0; 8 * MIB as usize];
    clone.read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().all(|byte| *byte == 1), "the clone has the content of its instant");
}

#[test]
fn a_cloned_range_keeps_blocks_shared_that_a_clone_gives_up() {
    let disk = XfsDisk::with_project_quota();
    let [source, clone, kept] = ["source", "clone", "kept"].map(|name| file(&disk.path().join(name)));
    source.write_all_at(&vec![1; 3 * MIB as usize], 0).unwrap();
    // The file ends within its last block.
    source.write_all_at(&[1; 100], 3 * MIB).unwrap();
    clone_file(&source, &clone).unwrap();
    clone_range(&clone, Bytes::MIB, Bytes::new(2 * MIB + 100), &kept, Bytes::new(4 * MIB)).unwrap();
    unshare(&clone, Bytes::ZERO, Bytes::new(3 * MIB + 100)).unwrap();
    assert_eq!((shared(&clone), shared(&source), shared(&kept)), (0, 2 * MIB + 4096, 2 * MIB + 4096));
    assert_eq!(kept.metadata().unwrap().len(), 6 * MIB + 100);
    kept.set_len(0).unwrap();
    assert_eq!(shared(&source), 0);
}

#[test]
fn unwritten_blocks_become_holes_and_unsharing_allocates_them() {
    let disk = XfsDisk::with_project_quota();
    let (source, clone) = (file(&disk.path().join("source")), file(&disk.path().join("clone")));
    fallocate(&source, FallocateFlags::empty(), 0, (4 * MIB).cast_signed()).unwrap();
    source.write_all_at(&vec![1; MIB as usize], MIB).unwrap();
    source.sync_all().unwrap();
    clone_file(&source, &clone).unwrap();
    let written = Extent { start: Bytes::MIB, length: Bytes::MIB, shared: true };
    assert_eq!(map(&clone), [written]);
    assert_eq!(clone.metadata().unwrap().len(), 4 * MIB);
    unshare(&clone, Bytes::ZERO, Bytes::new(3 * MIB)).unwrap();
    let stat = clone.metadata().unwrap();
    assert_eq!((stat.len(), stat.blocks() * 512, shared(&clone)), (4 * MIB, 3 * MIB, 0));
}

#[test]
fn more_extents_than_one_batch_are_listed() {
    let disk = XfsDisk::with_project_quota();
    let sparse = file(&disk.path().join("sparse"));
    // Without this size, each write behind the end would allocate more blocks in advance.
    sparse.set_len(200 * 8192).unwrap();
    for number in 0..200 {
        sparse.write_all_at(&[1; 4096], number * 8192).unwrap();
    }
    let found = map(&sparse);
    assert_eq!(found.len(), 200);
    assert!(found.iter().all(|extent| !extent.shared && extent.length == Bytes::new(4096)));
    assert_eq!(extents(&sparse, Bytes::new(199 * 8192 + 4096)).unwrap(), []);
}

/// Regression: the kernel rejected the range of the last block, and the sharing never ended.
#[test]
fn the_sharing_of_the_longest_file_ends() {
    const LONGEST: u64 = i64::MAX.cast_unsigned();
    let disk = XfsDisk::with_project_quota();
    let (source, clone) = (file(&disk.path().join("source")), file(&disk.path().join("clone")));
    source.write_all_at(&[1], LONGEST - 1).unwrap();
    clone_file(&source, &clone).unwrap();
    assert_eq!(clone.metadata().unwrap().len(), LONGEST);
    let [last] = map(&clone)[..] else { panic!("{:?}", map(&clone)) };
    assert!(last.shared && last.end() == Bytes::new(LONGEST), "{last:?}");
    unshare(&clone, last.start, last.length).unwrap();
    assert_eq!((shared(&source), shared(&clone)), (0, 0));
    let mut content = [0];
    clone.read_exact_at(&mut content, LONGEST - 1).unwrap();
    assert_eq!(content, [1]);
}

#[test]
fn errors_are_those_of_the_kernel() {
    let (disk, other) = (XfsDisk::with_project_quota(), Tmpfs::mount());
    let (one, two) = (file(&disk.path().join("one")), file(&other.path().join("two")));
    assert_eq!(clone_file(&two, &one), Err(Errno::EXDEV));
    assert_eq!(clone_file(File::open(disk.path()).unwrap(), &one), Err(Errno::EISDIR));
    let range = |length| clone_range(&one, Bytes::ZERO, length, file(&disk.path().join("three")), Bytes::ZERO);
    assert_eq!(range(Bytes::ZERO), Err(Errno::EINVAL));
    assert_eq!(unshare(&one, Bytes::ZERO, Bytes::ZERO), Err(Errno::EINVAL));
    assert_eq!(unshare(&one, Bytes::new(u64::MAX), Bytes::MIB), Err(Errno::EINVAL));
    assert_eq!(unshare(&two, Bytes::ZERO, Bytes::MIB), Err(Errno::EOPNOTSUPP));
}
