//! Errors at the limits, which also apply to root.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;

use fsquota::Quotas;
use ktest_support::eventually;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::{ENOSPC, SIGBUS};
use units::{Bytes, Inodes};

use crate::files::{append, create_direct, fill, mib, write, xfs_io};
use crate::tools::xfs_quota;
use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn writes_beyond_the_limit_fail_with_enospc() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let (written, error) = fill(&File::create(volumes.path("a/data")).unwrap());
    assert_eq!((written, error.raw_os_error()), (SIZE, Some(ENOSPC)));
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, SIZE);
}

#[test]
fn direct_writes_fail_with_enospc_before_the_last_blocks() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    // Each write first reserves space for extent records, which it may not use.
    let (written, error) = fill(&create_direct(&volumes.path("a/data")));
    assert_eq!((written.round_up::<{ 1 << 20 }>(), error.raw_os_error()), (Some(SIZE), Some(ENOSPC)));
    let (rest, _) = fill(&File::options().append(true).open(volumes.path("a/data")).unwrap());
    assert_eq!(written.checked_add(rest), Some(SIZE));
    assert!(fsquota::get(&dir).unwrap().used.bytes >= SIZE);
}

#[test]
fn mapped_writes_beyond_the_limit_raise_sigbus() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let path = volumes.path("a/data");
    let writer = xfs_io(&path, &["-f"], &["truncate 32m", "mmap -rw 0 32m", "mwrite 0 32m"]);
    assert_eq!(writer.status.signal(), Some(SIGBUS), "{writer:?}");
    fsquota::sync(&dir).unwrap();
    let used = fsquota::get(&dir).unwrap().used.bytes;
    assert!(used <= SIZE && used > mib(12), "{used}");
}

#[test]
fn preallocation_beyond_the_limit_fails_with_enospc() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let file = File::create(volumes.path("a/data")).unwrap();
    let reserved = fallocate(&file, FallocateFlags::empty(), 0, 1 << 30);
    assert_eq!(reserved, Err(nix::errno::Errno::ENOSPC));
    assert!(fsquota::get(&dir).unwrap().used.bytes <= SIZE);
}

#[test]
fn creating_files_beyond_the_limit_fails_with_enospc() {
    let (volumes, dir, _) = Volumes::with_volume(both(SIZE, 8));
    let made = (0..100).map(|n| File::create(volumes.path(&format!("a/{n}")))).take_while(Result::is_ok).count();
    let error = File::create(volumes.path("a/more")).unwrap_err();
    // The directory itself is the eighth inode.
    assert_eq!((made, error.raw_os_error()), (7, Some(ENOSPC)));
    assert!(fsquota::get(&dir).unwrap().used.inodes >= Inodes::new(8));
    fs::remove_file(volumes.path("a/0")).unwrap();
    // XFS counts a deleted inode until it frees it in the background.
    eventually("space for a file", || File::create(volumes.path("a/more")).is_ok());
}

#[test]
fn one_inode_is_enough_for_the_directory_alone() {
    let (volumes, _dir, _) = Volumes::with_volume(both(SIZE, 1));
    assert_eq!(fs::create_dir(volumes.path("a/b")).unwrap_err().raw_os_error(), Some(ENOSPC));
}

#[test]
fn a_limit_can_be_raised_while_a_program_writes() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let file = File::create(volumes.path("a/data")).unwrap();
    let (before, _) = fill(&file);
    fsquota::set(&dir, size(mib(24)), &volumes.ids).unwrap();
    let (more, error) = fill(&file);
    assert_eq!((before, more, error.raw_os_error()), (SIZE, mib(8), Some(ENOSPC)));
}

#[test]
fn a_limit_below_the_usage_rejects_writes() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    write(&volumes.path("a/data"), mib(4));
    fsquota::sync(&dir).unwrap();
    fsquota::set_limits(&volumes.root, id, both(mib(1), 1)).unwrap();
    let (written, error) = fill(&File::options().append(true).open(volumes.path("a/data")).unwrap());
    assert_eq!((written, error.raw_os_error()), (Bytes::ZERO, Some(ENOSPC)));
    assert_eq!(File::create(volumes.path("a/more")).unwrap_err().raw_os_error(), Some(ENOSPC));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.limits, quota.used.bytes), (both(mib(1), 1), mib(4)));
    // Reducing usage is always possible.
    fs::remove_file(volumes.path("a/data")).unwrap();
}

#[test]
fn usage_above_the_shown_size_never_expires() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    // A grace time of one second that has begun, and ends.
    xfs_quota(&volumes, "timer -p -b 1");
    xfs_quota(&volumes, &format!("limit -p bsoft=1m bhard=16m {id}"));
    write(&volumes.path("a/data"), mib(2));
    fsquota::sync(&dir).unwrap();
    let more = || fs::write(volumes.path("a/more"), [1; 4096]);
    eventually("the end of the grace time", || more().is_err());
    Quotas::open(&volumes.root).unwrap().set_limits_showing(id, size(SIZE), mib(1)).unwrap();
    more().unwrap();
    // The grace time of the next usage above the size: 2^31 seconds.
    let state = xfs_quota(&volumes, "state -p");
    assert!(state.contains("24855 days"), "{state}");
}

#[test]
fn space_preallocated_behind_the_end_of_a_file_is_usable() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    let file = File::create(volumes.path("a/data")).unwrap();
    append(&file, mib(4));
    fsquota::sync(&dir).unwrap();
    let counted = fsquota::get(&dir).unwrap().used.bytes;
    fsquota::set_limits(&dir, id, size(mib(1))).unwrap();
    let (written, error) = fill(&file);
    assert_eq!((written, error.raw_os_error()), (counted.saturating_sub(mib(4)), Some(ENOSPC)));
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, counted);
}

#[test]
fn overwriting_needs_no_space() {
    let (volumes, dir, _) = Volumes::with_volume(size(mib(4)));
    let path = volumes.path("a/data");
    write(&path, mib(4));
    fsquota::sync(&dir).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    append(&file, mib(4));
    file.sync_all().unwrap();
}

#[test]
fn growing_a_directory_beyond_the_limit_fails_with_enospc() {
    let (volumes, _dir, _) = Volumes::with_volume(size(mib(1)));
    fs::create_dir(volumes.path("a/names")).unwrap();
    fs::create_dir(volumes.path("a/moved")).unwrap();
    let data = volumes.path("a/data");
    fill(&File::create(&data).unwrap());
    let name = |n: usize| volumes.path(&format!("a/names/{n:0200}"));
    let linked = (0..1000).map(|n| fs::hard_link(&data, name(n))).find_map(Result::err).unwrap();
    assert_eq!(linked.raw_os_error(), Some(ENOSPC));
    let made = (1000..2000).map(|n| File::create(name(n))).find_map(Result::err).unwrap();
    assert_eq!(made.raw_os_error(), Some(ENOSPC));
    // Short names fit into the inode of the directory, long ones need a block.
    let short: Vec<_> = (0..8).map(|n| volumes.path(&format!("a/{n}"))).collect();
    let moved = short.iter().enumerate().find_map(|(n, short)| {
        fs::hard_link(&data, short).unwrap();
        fs::rename(short, volumes.path(&format!("a/moved/{n:0200}"))).err()
    });
    assert_eq!(moved.unwrap().raw_os_error(), Some(ENOSPC));
}

#[test]
fn files_that_grow_in_turns_can_use_the_whole_limit() {
    let (volumes, dir, _) = Volumes::with_volume(size(SIZE));
    // XFS preallocates space behind the end of each file; near the limit it frees that space.
    let files: Vec<_> = (0..4).map(|n| File::create(volumes.path(&format!("a/{n}"))).unwrap()).collect();
    for _ in 0..15 {
        files.iter().for_each(|file| append(file, mib(1).checked_sub(Bytes::new(768 << 10)).unwrap()));
    }
    let rest: Bytes = files.iter().map(|file| fill(file).0).sum();
    assert_eq!(rest, mib(1));
    assert!(fsquota::get(&dir).unwrap().used.bytes >= SIZE);
}
