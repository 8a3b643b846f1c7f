//! How many system calls it takes, and what if one is missing.

use fsquota::{FsError, GetError};
use ktest_support::process::{self, Traced};
use nix::libc::{
    SYS_close, SYS_fdatasync, SYS_flock, SYS_fstat, SYS_fstatfs, SYS_getdents64, SYS_ioctl, SYS_newfstatat, SYS_openat,
    SYS_pread64, SYS_pwrite64, SYS_quotactl_fd, SYS_statx,
};

use crate::volumes::{SIZE, Volumes, size};

/// The calls of some work, in their order, under the same name with each C library: which of the two it takes for
/// fstat(2) depends on its release.
fn calls(work: impl FnOnce()) -> Vec<i64> {
    let made = process::calls(work).into_iter();
    made.map(|call| if call == SYS_newfstatat { SYS_fstat } else { call }).collect()
}

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
        if call.number() == SYS_quotactl_fd {
            call.refuse();
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
    let assign = calls(|| assert!(fsquota::assign(&a, id, size(SIZE)).is_ok()));
    assert_eq!(assign, [&look[..], &empty, &begin, &[SYS_close]].concat());

    // Whether the IDs are of this file system; and a process that has none in memory moves the counter.
    let moved = [
        [SYS_openat, SYS_flock, SYS_statx, SYS_quotactl_fd, SYS_pread64],
        [SYS_pread64, SYS_quotactl_fd, SYS_pwrite64, SYS_fdatasync, SYS_close],
    ];
    let set = calls(|| assert!(fsquota::set(&b, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(set, [&look[..], &[SYS_fstat], &empty, moved.as_flattened(), &begin, &[SYS_close]].concat());

    let change = calls(|| assert!(fsquota::set(&a, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(change, [&look[..], &[SYS_quotactl_fd, SYS_close]].concat());

    // A directory; an XFS; enforced; its project; what that has.
    let get = calls(|| assert!(fsquota::get(&a).is_ok()));
    assert_eq!(get, [SYS_fstat, SYS_fstatfs, SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd]);
    let project = calls(|| assert!(fsquota::project(&a).is_ok()));
    assert_eq!(project, [SYS_fstat, SYS_fstatfs, SYS_ioctl]);
    let quota = calls(|| assert!(fsquota::quota(&a, id).is_ok()));
    assert_eq!(quota, [SYS_fstatfs, SYS_quotactl_fd, SYS_quotactl_fd]);

    // What is known already is not asked at all.
    let quotas = fsquota::Quotas::open(&a).unwrap();
    let (c, other) = (volumes.dir("c"), volumes.ids.next().unwrap());
    let new = calls(|| assert!(quotas.assign_new(&c, other, size(SIZE)).is_ok()));
    assert_eq!(new, [SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd, SYS_ioctl]);
    assert_eq!(calls(|| assert!(quotas.quota(other).is_ok())), [SYS_quotactl_fd]);
    assert_eq!(calls(|| assert!(quotas.set_limits(other, size(SIZE)).is_ok())), [SYS_quotactl_fd]);

    // That nothing else has the ID; no limits; no project.
    let remove = calls(|| assert!(fsquota::remove(&a).is_ok()));
    assert_eq!(remove, [&look[..], &empty, &begin, &[SYS_close]].concat());
}

#[test]
fn a_report_asks_once_for_each_project_whatever_is_in_it() {
    let volumes = Volumes::new();
    let report = || calls(|| assert!(fsquota::report(&volumes.root).unwrap().all(|quota| quota.is_ok()))).len();
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
