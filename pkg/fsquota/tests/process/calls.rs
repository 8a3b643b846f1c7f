//! How many system calls it takes, and what if one is missing.

use fsquota::{FsError, GetError};
use nix::libc::{
    SYS_brk, SYS_close, SYS_exit_group, SYS_fcntl, SYS_fdatasync, SYS_flock, SYS_fstat, SYS_fstatfs, SYS_futex,
    SYS_getdents64, SYS_getpid, SYS_ioctl, SYS_mmap, SYS_munmap, SYS_newfstatat, SYS_openat, SYS_pread64, SYS_pwrite64,
    SYS_quotactl_fd, SYS_statx,
};

use crate::child::{Traced, calls};
use crate::volumes::{SIZE, Volumes, size};

#[test]
fn a_kernel_without_quotactl_fd_is_told_apart() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", size(SIZE));
    let mut child = Traced::start(|| {
        assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::KernelTooOld)));
        assert_eq!(fsquota::require(&dir), Err(FsError::KernelTooOld));
    });
    let mut refused = 0;
    while let Some(call) = child.next_call() {
        if call.orig_rax.cast_signed() == SYS_quotactl_fd {
            child.refuse_call(call);
            refused += 1;
        }
    }
    // Each call, and the look at whether it exists.
    assert_eq!(refused, 4);
}

#[test]
fn a_new_volume_costs_the_same_whatever_there_is_already() {
    let volumes = Volumes::new();
    volumes.volume("first", size(SIZE));
    let (empty, next) = (volumes.dir("empty"), volumes.dir("next"));
    let set = |dir| calls(|| assert!(fsquota::set(dir, size(SIZE), &volumes.ids).is_ok()));
    let get = |dir| calls(|| assert!(fsquota::get(dir).is_ok()));
    let before = (set(&empty), get(&empty));
    for n in 0..200 {
        volumes.volume(&n.to_string(), size(SIZE));
    }
    assert_eq!((set(&next), get(&next)), before);
}

/// The calls of some work, in their order, without those about its own memory and locks, and without
/// what a build with debug assertions asks before it closes a descriptor.
fn named(work: impl FnOnce()) -> Vec<i64> {
    const OWN: [i64; 7] = [SYS_brk, SYS_exit_group, SYS_fcntl, SYS_futex, SYS_getpid, SYS_mmap, SYS_munmap];
    let mut child = Traced::start(work);
    let made = std::iter::from_fn(|| child.next_call()).map(|call| call.orig_rax.cast_signed());
    // Which of the two the C library takes depends on its release.
    made.filter(|call| !OWN.contains(call)).map(|call| if call == SYS_newfstatat { SYS_fstat } else { call }).collect()
}

#[test]
fn nothing_is_asked_twice() {
    let volumes = Volumes::new();
    let (a, b) = (volumes.dir("a"), volumes.dir("b"));
    let id = volumes.ids.next().unwrap();

    // A descriptor of its own; attributes; who is above, and its project, which also shows that this is an
    // XFS; whether quotas are enforced.
    let look = [SYS_openat, SYS_ioctl, SYS_getdents64, SYS_ioctl, SYS_quotactl_fd];
    // The end of the list of entries.
    let empty = [SYS_getdents64];
    // Whether the ID is free; its limits; the directory gets it.
    let begin = [SYS_quotactl_fd, SYS_quotactl_fd, SYS_ioctl];
    let assign = named(|| assert!(fsquota::assign(&a, id, size(SIZE)).is_ok()));
    assert_eq!(assign, [&look[..], &empty, &begin, &[SYS_close]].concat());

    // Whether the IDs are of this file system; and a process that has none in memory moves the counter.
    let moved = [
        [SYS_openat, SYS_flock, SYS_statx, SYS_quotactl_fd, SYS_pread64],
        [SYS_pread64, SYS_quotactl_fd, SYS_pwrite64, SYS_fdatasync, SYS_close],
    ];
    let set = named(|| assert!(fsquota::set(&b, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(set, [&look[..], &[SYS_fstat], &empty, moved.as_flattened(), &begin, &[SYS_close]].concat());

    let change = named(|| assert!(fsquota::set(&a, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(change, [&look[..], &[SYS_quotactl_fd, SYS_close]].concat());

    // A directory; an XFS; enforced; its project; what that has.
    let get = named(|| assert!(fsquota::get(&a).is_ok()));
    assert_eq!(get, [SYS_fstat, SYS_fstatfs, SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd]);
    let project = named(|| assert!(fsquota::project(&a).is_ok()));
    assert_eq!(project, [SYS_fstat, SYS_fstatfs, SYS_ioctl]);
    let quota = named(|| assert!(fsquota::quota(&a, id).is_ok()));
    assert_eq!(quota, [SYS_fstatfs, SYS_quotactl_fd, SYS_quotactl_fd]);

    // What is known already is not asked at all.
    let quotas = fsquota::Quotas::open(&a).unwrap();
    let (c, other) = (volumes.dir("c"), volumes.ids.next().unwrap());
    let new = named(|| assert!(quotas.assign_new(&c, other, size(SIZE)).is_ok()));
    assert_eq!(new, [SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd, SYS_ioctl]);
    assert_eq!(named(|| assert!(quotas.quota(other).is_ok())), [SYS_quotactl_fd]);
    assert_eq!(named(|| assert!(quotas.set_limits(other, size(SIZE)).is_ok())), [SYS_quotactl_fd]);

    // That nothing else has the ID; no limits; no project.
    let remove = named(|| assert!(fsquota::remove(&a).is_ok()));
    assert_eq!(remove, [&look[..], &empty, &begin, &[SYS_close]].concat());
}

#[test]
fn a_report_asks_once_for_each_project_whatever_is_in_it() {
    let volumes = Volumes::new();
    let report = || calls(|| assert!(fsquota::report(&volumes.root).unwrap().all(|quota| quota.is_ok())));
    let none = report();
    for n in 0..20 {
        volumes.volume(&n.to_string(), size(SIZE));
    }
    assert_eq!(report(), none + 20);
    for n in 0..100 {
        std::fs::create_dir_all(volumes.path(&format!("0/{n}/deeper"))).unwrap();
    }
    assert_eq!(report(), none + 20);
}
