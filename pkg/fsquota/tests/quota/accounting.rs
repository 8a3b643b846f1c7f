//! Space that XFS counts to a project, and when it stops counting it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::thread;

use fsquota::Usage;
use ktest_support::eventually_is;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::ENOSPC;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Uid, chown, mkfifo, setfsuid};
use units::{Bytes, Inodes};

use crate::files::{append, create_direct, mib, write, xfs_io_ok};
use crate::sys::{FsXattr, set_xattr};
use crate::volumes::{SIZE, Volumes, both, size};

fn usage(bytes: Bytes, inodes: u64) -> Usage {
    Usage { bytes, inodes: Inodes::new(inodes) }
}

#[test]
fn buffered_direct_and_mapped_writes_are_counted_equally() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    write(&volumes.path("a/buffered"), mib(4));
    append(&create_direct(&volumes.path("a/direct")), mib(4));
    xfs_io_ok(&volumes.path("a/mapped"), &["-f"], &["truncate 4m", "mmap -rw 0 4m", "mwrite 0 4m", "msync -s"]);
    fsquota::sync(&dir).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(mib(12), 4));
}

#[test]
fn delayed_allocations_count_and_deleted_blocks_do_not() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    write(&volumes.path("a/data"), mib(4));
    assert!(fsquota::get(&dir).unwrap().used.bytes >= mib(4));
    fs::remove_file(volumes.path("a/data")).unwrap();
    eventually_is(&usage(Bytes::ZERO, 1), || fsquota::get(&dir).unwrap().used);
}

#[test]
fn a_hole_is_not_counted() {
    let (volumes, dir, _) = Volumes::with_volume(size(mib(1)));
    let file = File::create(volumes.path("a/data")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(&[1], 1 << 39).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(Bytes::new(4096), 2));
}

#[test]
fn preallocated_space_counts_until_it_is_freed() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let file = File::create(volumes.path("a/data")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(8));
    fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 8 << 20, 1 << 20).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(9));
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 1 << 20, 2 << 20).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(7));
    file.set_len(1 << 20).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(1));
}

#[test]
fn directories_count_the_blocks_of_their_names() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    (0..100).for_each(|n| drop(File::create(volumes.path(&format!("a/{n:0200}"))).unwrap()));
    let used = fsquota::get(&dir).unwrap().used;
    assert_eq!(used.inodes, Inodes::new(101));
    assert!(used.bytes >= Bytes::new(100 * 200), "{used:?}");
}

#[test]
fn a_reflinked_file_is_charged_in_full() {
    let (volumes, dir, _) = Volumes::with_volume(size(mib(6)));
    write(&volumes.path("a/data"), mib(4));
    fsquota::sync(&dir).unwrap();
    // `fs::copy` creates a reflink if possible.
    let error = fs::copy(volumes.path("a/data"), volumes.path("a/copy")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
}

#[test]
fn writing_a_reflinked_file_does_not_charge_it_again() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let (data, copy) = (volumes.path("a/data"), volumes.path("a/copy"));
    write(&data, mib(4));
    fsquota::sync(&dir).unwrap();
    xfs_io_ok(&copy, &["-f"], &[&format!("reflink {}", data.display())]);
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(mib(8), 3));
    let file = File::options().write(true).open(&copy).unwrap();
    append(&file, mib(4));
    file.sync_all().unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(mib(8), 3));
    fs::remove_file(data).unwrap();
    eventually_is(&usage(mib(4), 2), || fsquota::get(&dir).unwrap().used);
}

#[test]
fn blocks_follow_a_change_of_the_project() {
    let volumes = Volumes::new();
    let ((a, _), (b, to)) = (volumes.volume("a", size(SIZE)), volumes.volume("b", size(SIZE)));
    write(&volumes.path("a/data"), mib(4));
    // Delayed allocations, not on the disk yet, move too.
    xfs_io_ok(&volumes.path("a/data"), &[], &[&format!("chproj {to}")]);
    fsquota::sync(&a).unwrap();
    assert_eq!(fsquota::get(&a).unwrap().used, usage(Bytes::ZERO, 1));
    assert_eq!(fsquota::get(&b).unwrap().used, usage(mib(4), 2));
}

#[test]
fn a_failed_change_of_project_leaves_no_reservation() {
    let volumes = Volumes::new();
    let ((a, from), (b, to)) = (volumes.volume("a", size(SIZE)), volumes.volume("b", both(mib(1), 100)));
    let path = volumes.path("a/data");
    let file = File::create(&path).unwrap();
    append(&file, mib(4));
    let both_used = || (fsquota::get(&a).unwrap().used, fsquota::get(&b).unwrap().used);
    let before = both_used();

    // FS_XFLAG_EXTSIZE with a size that is not a multiple of the block size.
    let wrong = FsXattr { xflags: 1 << 11, extsize: 1, projid: to.get(), ..FsXattr::default() };
    assert_eq!(set_xattr(&file, &wrong), Err(Errno::EINVAL));
    assert_eq!(both_used(), before);

    // Without CAP_SYS_RESOURCE, the owner cannot exceed the limit of the other project.
    let owner = Uid::from_raw(1000);
    chown(&path, Some(owner), None).unwrap();
    let refused = thread::scope(|scope| {
        let owned = scope.spawn(|| {
            setfsuid(owner);
            set_xattr(&file, &FsXattr { projid: to.get(), ..FsXattr::default() })
        });
        owned.join().unwrap()
    });
    assert_eq!(refused, Err(Errno::ENOSPC));
    assert_eq!(both_used(), before);

    drop(file);
    fsquota::sync(&a).unwrap();
    assert_eq!(both_used(), (usage(mib(4), 2), usage(Bytes::ZERO, 1)));
    fs::remove_file(&path).unwrap();
    eventually_is(&usage(Bytes::ZERO, 1), || fsquota::get(&a).unwrap().used);
    assert_eq!(fsquota::project(&a), Ok(Some(from)));
}

#[test]
fn every_kind_of_file_counts_as_one_inode_of_the_project() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 7));
    mkfifo(&volumes.path("a/pipe"), Mode::S_IRWXU).unwrap();
    symlink("nowhere", volumes.path("a/link")).unwrap();
    let _socket = UnixListener::bind(volumes.path("a/socket")).unwrap();
    mknod(&volumes.path("a/null"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).unwrap();
    mknod(&volumes.path("a/disk"), SFlag::S_IFBLK, Mode::S_IRWXU, makedev(254, 0)).unwrap();
    File::create(volumes.path("a/file")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(Bytes::ZERO, 7));
    assert_eq!(fsquota::strays(&dir, id).unwrap().collect::<Vec<_>>(), []);
    let more = [
        mkfifo(&volumes.path("a/more"), Mode::S_IRWXU),
        mknod(&volumes.path("a/more"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)),
    ];
    assert_eq!(more, [Err(Errno::ENOSPC); 2]);
    assert_eq!(symlink("nowhere", volumes.path("a/more")).unwrap_err().raw_os_error(), Some(ENOSPC));
}

#[test]
fn a_long_symbolic_link_counts_its_block() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    symlink("x".repeat(1000), volumes.path("a/link")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used, usage(Bytes::new(4096), 2));
}
